// The interface of what proposes tokens that may follow a sequence. The engine computes the proposed tokens
// in the step that computes the sequence's last token, draws its own token behind each, and keeps them up to
// the first that differs. So a wrong proposal costs time and changes no token.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROPOSER_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROPOSER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/scheduler/sequence.h"

namespace tensorwright {

// The most tokens that are proposed for a sequence in one step.
constexpr int32_t kMaxDraft = 16;

// A sequence that decodes in the next step, and how many tokens may be proposed for it.
struct DraftWish {
  const Sequence* sequence;
  int32_t most;
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  // The target's executor is ready, and nobody uses it yet. Throws what the executor throws.
  virtual void begin() {}
  // A step was computed: of each chunk of the plan the tokens from sequence->computed on, and its draft.
  // Nothing may be computed before the step's rows were used. What it throws is dropped.
  virtual void computed(const StepPlan& /*plan*/) {}
  // Whether it is thought to be worth start_seconds() to begin, or to go on, with proposals for a sequence.
  using Worth = std::function<bool(const Sequence&)>;
  // The next step is planned: its sequences hold their blocks. What it throws is dropped.
  virtual void prepare(const StepPlan& /*plan*/, const Worth& /*worth*/) {}
  // Whether proposals are computed into the sequences' own blocks: then the blocks for wishes[i].most tokens
  // are there when they are asked for.
  virtual bool uses_blocks() const { return false; }
  // The most tokens that are proposed for a sequence at once.
  virtual int32_t most() const { return kMaxDraft; }
  // Writes the tokens that may follow wishes[i].sequence to (*drafts)[i]: none, or up to wishes[i].most.
  // `drafts` has as many entries as `wishes`, all empty. What it throws leaves the step without drafts.
  virtual void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) = 0;
  // The completion has ended. It takes no memory and throws nothing.
  virtual void forget(const Sequence& sequence) = 0;
  // Returns the seconds that it takes to propose one more token for each of `sequences` sequences. 0: next to
  // none, whatever the length. Else the lengths are chosen before the proposals are made.
  virtual double seconds(int32_t /*sequences*/) const { return 0; }
  // Returns the seconds that it takes before anything can be proposed for the sequence, besides seconds().
  virtual double start_seconds(const Sequence& /*sequence*/) const { return 0; }
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROPOSER_H_
