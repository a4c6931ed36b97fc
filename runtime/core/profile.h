// Time, bytes and arithmetic of each instruction, summed over the steps run while profiling was on.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan.h"

namespace tensorwright {

struct ProfileRow {
  std::string name;  // module path in the model
  std::string op;
  int64_t calls = 0;
  int64_t nanoseconds = 0;
  Cost cost;
};

class Profile {
 public:
  explicit Profile(const Plan& plan);

  bool enabled() const { return enabled_; }
  // Turning it on starts from zero; turning it off keeps the sums.
  void enable(bool on);
  void add(size_t instruction, int64_t nanoseconds, Cost cost);
  const std::vector<ProfileRow>& rows() const { return rows_; }

 private:
  bool enabled_ = false;
  std::vector<ProfileRow> rows_;  // [instructions]
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_
