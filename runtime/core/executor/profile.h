// Sums the time, bytes and arithmetic of each instruction over the steps that ran while profiling was on, by
// the kind of step. It is thread-safe: another thread than the one that runs the steps may read the sums.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/core/interface/executor.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

// The kind of a step: it has several tokens of each sequence, one token of each, or sequences of both kinds.
enum class Phase { kPrefill, kDecode, kMixed };
inline constexpr std::array<const char*, 3> kPhaseNames = {"prefill", "decode", "mixed"};

Phase phase_of(const Step& step);

struct ProfileRow {
  std::string name;  // module path in the model
  std::string op;
  std::string arithmetic;  // see Plan::arithmetic
  int64_t calls = 0;
  int64_t nanoseconds = 0;
  Cost cost;
  std::vector<int64_t> expert_rows;  // [experts]: the rows that took each; empty for an op without experts
};

struct PhaseSums {
  int64_t steps = 0, tokens = 0, sequences = 0, rows = 0, nanoseconds = 0;
};

// The time and cost of one instruction in one step.
struct Measured {
  int64_t nanoseconds = 0;
  Cost cost;
  ExpertUse experts;
};

class Profile {
 public:
  explicit Profile(const Plan& plan);

  bool enabled() const { return enabled_; }
  // Turning profiling on resets the sums to zero; turning it off keeps them.
  void enable(bool on);
  // measured: [instructions]. A step that ends after profiling was turned off is not counted.
  void add(const Step& step, const std::vector<Measured>& measured, int64_t nanoseconds);
  std::vector<ProfileRow> rows(Phase phase) const;  // [instructions]
  PhaseSums steps(Phase phase) const;

 private:
  struct Sums {
    std::vector<ProfileRow> rows;
    PhaseSums steps;
  };

  std::atomic<bool> enabled_{false};
  mutable std::mutex mutex_;
  std::array<Sums, kPhaseNames.size()> phases_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROFILE_H_
