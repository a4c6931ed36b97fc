// Refuses malformed steps, so that nothing below ever indexes outside the arenas or the KV cache.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/executor.h"

namespace tensorwright {

// The largest step that the executor was allocated for.
struct StepLimits {
  int32_t tokens = 0, rows = 0, seqs = 0;
};

class StepChecker {
 public:
  // blocks: per cache group, as allocated.
  StepChecker(const ModelFacts& facts, const StepLimits& limits, const std::vector<int32_t>& blocks);

  // Throws Error{"InvalidRequestError"}. A sequence's tokens must be consecutive positions that end its
  // context; each slot must be where the block table puts its position; two sequences may not write to one
  // block.
  void check(const Step& step);

 private:
  void check_sizes(const Step& step) const;
  void check_tokens(const Step& step) const;
  void check_sequences(const Step& step) const;
  void check_group(const Step& step, size_t group);
  void check_slots(const Step& step, size_t group, int32_t seq);

  const ModelFacts facts_;
  const StepLimits limits_;
  std::vector<std::vector<int64_t>>
      writers_;  // [group][block]: who last wrote to it, a number per (step, sequence)
  int64_t steps_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_
