// Refuses malformed steps, so that no operation ever indexes outside the arenas, the KV cache or the states.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// The largest step that the executor was allocated for.
struct StepLimits {
  int32_t tokens = 0, rows = 0, seqs = 0;
  int32_t state_slots = 0;  // 0: the model has no states
};

class StepChecker {
 public:
  // blocks: the allocated blocks of each cache group. steps: the number that the count of steps begins with,
  // for tests of large numbers. group: the only one that counts; -1: all do.
  StepChecker(const ModelFacts& facts, const StepLimits& limits, const std::vector<int32_t>& blocks,
              int64_t steps = 0, int32_t group = -1);

  // Throws Error{"InvalidRequestError"}. The tokens of a sequence must have consecutive positions that end
  // its context. Each slot must be where the block table puts the token's position. Two sequences must not
  // write to one block, nor have the same state slot. Blocks of rows that choose what they see must be whole.
  // rows_before: the rows of the step that was started before this one, whose tokens it may have; 0: none.
  void check(const Step& step, int32_t rows_before = 0);

 private:
  void check_sizes(const Step& step) const;
  void check_tokens(const Step& step, int32_t rows_before) const;
  void check_sequences(const Step& step) const;
  void check_states(const Step& step);
  void check_prompts(const Step& step) const;
  void check_group(const Step& step, size_t group);
  void check_slots(const Step& step, size_t group, int32_t seq);

  const ModelFacts facts_;
  const StepLimits limits_;
  const int32_t group_;
  struct Writer {
    int64_t step = -1;
    int32_t seq = -1;  // the sequence that wrote in that step
  };
  std::vector<std::vector<Writer>> writers_;  // [group][block]: the last write to the block
  std::vector<Writer> state_writers_;         // [state slot]: the last step that had the slot
  int64_t steps_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_CHECK_H_
