// Lets guided completions jump forward: where a grammar leaves one token alone, that token is computed in the
// step of the token before it and costs no step of its own.
//
// A forced token is a draft (scheduler.h) that is surely right: behind it the engine draws its own token from
// the logits and the mask, as ever, so tokens and logprobs are those of the run without. How many tokens in a
// row are forced is known as far as their masks have come.
#ifndef TENSORWRIGHT_RUNTIME_CORE_FORCED_TOKENS_H_
#define TENSORWRIGHT_RUNTIME_CORE_FORCED_TOKENS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/engine/mask_source.h"
#include "runtime/core/scheduler/scheduler.h"

namespace tensorwright {

// The most forced tokens that a step computes of one sequence.
constexpr int32_t kMaxForced = 32;

class ForcedTokens {
 public:
  // max_rows: the most forced tokens of a step, with its prompt positions whose logits are reported: each
  // takes the memory of a row of logits.
  ForcedTokens(MaskSource& masks, int32_t vocab_size, int32_t max_seq_len, int32_t max_rows)
      : masks_(masks), vocab_size_(vocab_size), max_seq_len_(max_seq_len), max_rows_(max_rows) {}

  // Waits, between two steps, for the masks of the sequences that decode next, because a mask that comes
  // after the step is planned saves one step less. It waits for a small part of the time of a step.
  void await_masks(const Scheduler& scheduler, std::vector<Event>* events);
  // Adds forced tokens to the decodes of a plan, within its budget and the free blocks. Throws
  // std::bad_alloc; the plan then has some of them.
  void extend(StepPlan& plan, Scheduler& scheduler);
  // Notes how long a step computed.
  void observe_step(Clock::duration computing) { step_ = computing; }
  // Notes that a forced token was drawn, which was computed already.
  void verified() { ++saved_; }
  // Returns how many tokens cost no step of their own.
  int64_t saved() const { return saved_; }

 private:
  int32_t most(const Sequence& sequence) const;
  bool misses_mask(const Scheduler& scheduler);

  MaskSource& masks_;
  const int32_t vocab_size_, max_seq_len_, max_rows_;
  Clock::duration step_ = {};
  int64_t saved_ = 0;
  std::vector<int32_t> tokens_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_FORCED_TOKENS_H_
