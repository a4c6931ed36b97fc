// Proposes what heads say that look at one position alone, each of them one token further on (Medusa): one
// pass over the feature of the last computed position says several tokens. They hold nothing in the cache.
// Each token is drawn behind those that were proposed before it, as penalties want it, but no head has seen
// what another one said.
#ifndef TENSORWRIGHT_RUNTIME_CORE_HEADS_AT_ONCE_H_
#define TENSORWRIGHT_RUNTIME_CORE_HEADS_AT_ONCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/interface/executor.h"
#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/speculation/draft_draws.h"
#include "runtime/core/speculation/heads_tokens.h"
#include "runtime/core/speculation/proposer.h"
#include "runtime/core/speculation/step_cost.h"

namespace tensorwright {

class HeadsAtOnce : public Proposer {
 public:
  // executor: the target's, whose plan has the heads. It must live longer, and be allocated before begin().
  // Throws what heads_tokens.h says.
  HeadsAtOnce(Executor& executor, HeadsOptions options);

  void begin() override;
  void computed(const StepPlan& plan) override;
  void prepare(const StepPlan& plan, const Worth& worth) override;
  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override;
  void forget(const Sequence& sequence) override { mirrors_.erase({sequence.id, sequence.completion}); }
  int32_t most() const override { return at_once_; }
  // A pass costs the same whatever is taken of it: each token has its share.
  double seconds(int32_t sequences) const override { return cost_.seconds(sequences) / at_once_; }

  // For tests: the number of sequences whose features are kept.
  int64_t mirrors() const { return static_cast<int64_t>(mirrors_.size()); }

 private:
  using Name = std::pair<int64_t, int32_t>;  // request, completion
  // What is kept of a sequence: the features of the last positions that were computed, of which one is behind
  // the last token that turns out right.
  struct Mirror {
    int32_t first = 0;            // the position of the first feature
    int32_t count = 0;            // the positions whose features are kept
    std::vector<float> features;  // [count, draft_width]; empty where the executor keeps them
    std::shared_ptr<const Sampling> sampling;
    std::vector<int32_t> tokens;  // the sequence's, then the proposed ones
    int32_t known = 0;            // the leading tokens that are the sequence's
  };
  struct Part {
    const Sequence* sequence;
    Mirror* mirror;
    int32_t most;
    std::vector<int32_t>* draft;
  };

  int32_t slot_at(const Sequence& sequence, int32_t position) const;
  DraftRows run(std::span<const Part> parts);
  void draw(const LogitRows& rows, std::span<const Part> parts);

  Executor& executor_;
  const HeadsOptions options_;
  const int32_t width_;  // the floats of a kept feature: 0 where the executor keeps them
  const int32_t at_once_;
  std::map<Name, Mirror> mirrors_;
  DraftDraws draws_;
  StepCost cost_;  // of a pass for so many sequences
  Step step_;
  std::vector<float> given_;  // [sequences of a pass, width_]
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_HEADS_AT_ONCE_H_
