// Gives the decoding sequences of a planned step their drafts, and learns from what became of them.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DRAFTER_H_
#define TENSORWRIGHT_RUNTIME_CORE_DRAFTER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/speculation/length_policy.h"
#include "runtime/core/speculation/profit.h"
#include "runtime/core/speculation/proposer.h"

namespace tensorwright {

struct SpeculationOptions {
  int32_t tokens = 0;  // proposed for each sequence in a step; 0: as many as pay
  int32_t max_rows =
      64;  // proposed tokens of all sequences in a step: each takes the memory of a row of logits
};

struct SpeculationStats {
  int64_t drafts = 0;    // proposals that a step computed
  int64_t proposed = 0;  // their tokens
  int64_t accepted = 0;  // those that were right, behind right ones only
  // How often the token at each place of a proposal was verified to be right; [0] is the first.
  std::array<int64_t, kMaxDraft> accepted_at = {};
  int64_t failures = 0;  // proposals that ended in an exception, or for which there was no memory
  double propose_s = 0;  // seconds in which proposals were made
};

// A step that was computed.
struct StepTime {
  int32_t tokens = 0;
  int32_t decodes = 0;    // its sequences, if all of them decoded and a grammar forced no tokens; else 0
  bool proposed = false;  // some of its tokens were proposed
  double seconds = 0;

  static StepTime of(const StepPlan& plan);
};

class Drafter {
 public:
  Drafter(std::unique_ptr<Proposer> proposer, const SpeculationOptions& options, int32_t max_seq_len)
      : proposer_(std::move(proposer)),
        options_(options),
        max_seq_len_(max_seq_len),
        policy_(options.tokens) {}

  // The target's executor is ready.
  void begin() { proposer_->begin(); }
  // Tells the proposer of a step that was computed and not committed yet.
  void computed(const StepPlan& plan);
  // Adds proposals to the decodes of the plan, within its budget and the free blocks. Nobody is preempted for
  // them. If it throws, the plan is as it was, or with some of the proposals.
  void extend(StepPlan& plan, Scheduler& scheduler);
  // Counts the token at `place` of the sequence's draft, which was compared with the sequence's own.
  void verified(const Sequence& sequence, int32_t place, bool right);
  // Counts the seconds of a step, after its tokens were verified.
  void observe_step(const StepTime& step);
  // Forgets a completion that has ended.
  void forget(const Sequence& sequence);
  const SpeculationStats& stats() const { return stats_; }
  const LengthPolicy& policy() const { return policy_; }

 private:
  using Name = std::pair<int64_t, int32_t>;  // request, completion

  void make_drafts(StepPlan& plan, Scheduler& scheduler);
  int32_t most(const Sequence& sequence) const;
  bool worth_starting(const Sequence& sequence, int32_t tokens, int32_t tried = LengthPolicy::kTriedSteps);
  double price(int32_t sequences) const { return dearer_ * proposer_->seconds(sequences); }
  void learn_price(std::span<const DraftWish> wishes, bool started, double seconds);
  std::vector<Candidate> candidates(std::span<const DraftWish> wishes);
  std::vector<std::vector<int32_t>> propose(std::span<const DraftWish> wishes);
  void reserve(const StepPlan& plan, Scheduler& scheduler, std::span<const size_t> chunks,
               std::vector<DraftWish>& wishes) const;

  std::unique_ptr<Proposer> proposer_;
  const SpeculationOptions options_;
  const int32_t max_seq_len_;
  LengthPolicy policy_;
  Profit profit_;
  double extend_s_ = 0;          // of the step that comes
  int64_t accepted_before_ = 0;  // before the step
  std::map<Name, Acceptance> acceptance_;
  double dearer_ = 1;  // how many times longer proposals took lately than the proposer says
  SpeculationStats stats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DRAFTER_H_
