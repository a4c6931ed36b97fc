// Proposes what a smaller model of the same tokenizer says. The model has an executor and a KV cache of its
// own. For each sequence it keeps what it has computed, goes on behind the longest beginning that is still
// right, and computes what it has missed, all sequences in one pass. It draws with the sampler, the seed and
// the position with which the engine will draw, so that it is right as often as the two distributions allow.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DRAFT_MODEL_H_
#define TENSORWRIGHT_RUNTIME_CORE_DRAFT_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/cache/group_shape.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/speculation/draft_draws.h"
#include "runtime/core/speculation/proposer.h"
#include "runtime/core/speculation/step_cost.h"

namespace tensorwright {

struct DraftModelOptions {
  std::vector<GroupShape> shapes;  // [cache groups] of the draft model
  int32_t max_seqs = 1;            // sequences for which it proposes at once
  int32_t max_tokens = 1;          // tokens of one pass, at least max_seqs
  int32_t target_vocab = 0;        // the vocabulary size of the model that verifies
  bool prefix_cache = true;
};

class DraftModel : public Proposer {
 public:
  // Throws Error: InvalidOptionError for a model with recurrent states, and what the executor throws.
  DraftModel(std::unique_ptr<Executor> executor, DraftModelOptions options);

  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override;
  void forget(const Sequence& sequence) override;
  double seconds(int32_t sequences) const override { return cost_.seconds(sequences); }
  // Those of the tokens that it has not computed, but for the last and the few that each proposal leaves.
  double start_seconds(const Sequence& sequence) const override;

  // For tests: the number of sequences that hold blocks, and the tokens that were computed so far.
  int64_t mirrors() const { return static_cast<int64_t>(mirrors_.size()); }
  int64_t computed_tokens() const { return computed_tokens_; }
  // Throws InvariantError unless the blocks of the cache are those that the sequences hold.
  void check() const;

 private:
  using Name = std::pair<int64_t, int32_t>;  // request, completion
  // What the draft model knows of a sequence. Its tokens are the sequence's, then the proposed ones.
  struct Mirror {
    Sequence own;
    int32_t known = 0;  // the leading tokens that are the sequence's
    int64_t asked = 0;  // the last call of propose() that named it
    bool started = false;
  };
  // A sequence for which tokens are wanted in this call.
  struct Wanted {
    Mirror* mirror;
    int32_t most;
    std::vector<int32_t>* draft;
    bool failed = false;
  };

  Mirror& follow(const Sequence& sequence);
  void start(Mirror& mirror);
  void let_go(Mirror& mirror);
  bool take_blocks(Mirror& mirror, int32_t tokens);
  StepPlan plan_first(std::vector<Wanted>& wanted, std::vector<Wanted*>* drawing);
  StepPlan plan_next(std::vector<Wanted*>& drawing);
  void append(StepPlan& plan, Mirror& mirror, int32_t tokens);
  void run(const StepPlan& plan, std::vector<Wanted*>& drawing);
  static std::vector<DraftDraw> draws_of(const std::vector<Wanted*>& drawing);
  void draw(const LogitRows& logits, std::vector<Wanted*>& drawing);
  void remember(Mirror& mirror);

  std::unique_ptr<Executor> executor_;
  const DraftModelOptions options_;
  KvBlocks kv_;
  std::map<Name, Mirror> mirrors_;  // destroyed before kv_, because they give their blocks back to it
  DraftDraws draws_;
  StepCost cost_;
  Step step_;
  int64_t calls_ = 0, computed_tokens_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DRAFT_MODEL_H_
