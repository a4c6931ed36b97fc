// Proposes what heads say that are a part of the target's plan (EAGLE-3): a small decoder over the target's
// features. Its position i has the token of position i + 1 and the feature of position i, so that it says
// what may follow token i + 1. Its keys and values lie in the sequence's own blocks, at position i; so they
// are shared, copied and given back with the target's.
//
// Every position is computed once with the target's feature, when tokens are wanted, or when many features
// are kept. A sequence for which that is not worth its time is given up: it gets no proposals. Behind the
// first proposed token the features are the heads' own; these positions are computed again when the target's
// are there. A position that comes from the prefix cache, or from another completion, may hold what was
// computed behind another token: then a proposal is a little worse, and no token of an answer differs.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DRAFT_HEADS_H_
#define TENSORWRIGHT_RUNTIME_CORE_DRAFT_HEADS_H_

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

class DraftHeads : public Proposer {
 public:
  // executor: the target's, whose plan has the heads. It must live longer, and be allocated before begin().
  // Throws what heads_tokens.h says, and Error{"EngineError"} for heads that say several tokens at once.
  DraftHeads(Executor& executor, HeadsOptions options);

  void begin() override;
  void computed(const StepPlan& plan) override;
  void prepare(const StepPlan& plan, const Worth& worth) override;
  bool uses_blocks() const override { return true; }
  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override;
  void forget(const Sequence& sequence) override { mirrors_.erase({sequence.id, sequence.completion}); }
  double seconds(int32_t sequences) const override { return cost_.seconds(sequences); }
  // Those of the positions whose features are kept, but for the few that each proposal leaves.
  double start_seconds(const Sequence& sequence) const override;

  // For tests: the number of sequences whose features are kept, the features, and the tokens computed so far.
  int64_t mirrors() const { return static_cast<int64_t>(mirrors_.size()); }
  int64_t kept_features() const;
  int64_t computed_tokens() const { return computed_tokens_; }

 private:
  using Name = std::pair<int64_t, int32_t>;  // request, completion
  // What is known of a sequence. The heads have computed the positions before `first`, as far as they will.
  struct Mirror {
    std::vector<int32_t> tokens;  // the sequence's, then the proposed ones
    int32_t known = 0;            // the leading tokens that are the sequence's
    int32_t first = 0;            // the position of the first kept feature
    int32_t end = 0;              // the position behind the last kept feature
    std::vector<float> features;  // [end - first, draft_width]; empty where the executor keeps them
    std::shared_ptr<const Sampling> sampling;
    bool given_up = false;
    // Where the executor keeps features: the first position of the last chunk, and its block. A sequence that
    // has lost its blocks has another one there, or none.
    int32_t seen = -1, block = -1;
  };
  // A sequence in a pass, and its positions there: with the features of the mirror, or with one of the
  // heads'.
  struct Part {
    const Sequence* sequence;
    Mirror* mirror;
    int32_t from, to;
    const float* own = nullptr;  // the heads' own feature of position `from`
    int32_t most = 0;            // tokens that are wanted; 0: none is drawn
    std::vector<int32_t>* draft = nullptr;
  };

  Mirror* find(const Sequence& sequence);
  void want_features(const StepPlan& plan, const Worth& worth);
  int32_t block_at(const Sequence& sequence, int32_t position) const;
  void keep(const FeatureRows& features, int64_t row, const PlannedChunk& chunk);
  void follow(const Sequence& sequence, Mirror& mirror) const;
  void drop_features(Mirror& mirror, int32_t before) const;
  int32_t past_written(const Sequence& sequence, int32_t from, int32_t to);
  void learn_position(int32_t positions, double seconds);
  DraftRows run(std::span<const Part> parts);
  static std::vector<DraftDraw> draws_of(std::span<const Part> parts);
  void draw(const LogitRows& logits, std::vector<Part>& parts);

  Executor& executor_;
  const HeadsOptions options_;
  const int32_t width_;      // the floats of a kept feature: 0 where the executor keeps them
  const int32_t most_kept_;  // features of a sequence
  std::map<Name, Mirror> mirrors_;
  DraftDraws draws_;
  StepCost cost_;          // of a pass that proposes so many tokens
  double position_s_ = 0;  // seconds of a position, where many are computed and few tokens proposed
  Step step_;
  std::vector<float> given_;      // [tokens of a pass, width_]
  std::vector<float> own_;        // [sequences of a pass, width_]
  std::vector<int32_t> written_;  // the blocks that the parts of a pass write
  int64_t computed_tokens_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DRAFT_HEADS_H_
