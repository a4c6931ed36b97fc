// Decides which blocks of a sequence stay, in cache groups whose sequences may keep so many (BlockBudget).
//
// The blocks of such a group are scored: each row of attention adds, for each block that it sees, the block's
// share of the row's softmax, as a whole number of 2^-32. So a score does not depend on the order in which
// rows, heads and layers add to it. At each multiple of BlockBudget::interval positions it is decided which
// blocks stay: the first ones (sinks), the most recent ones, and of the others those with the largest scores,
// of equal ones the older. What does not stay is gone for good: no later row sees it, and the scheduler frees
// it. Scores are then halved, so that what was seen long ago counts less.
//
// No step crosses such a position (ModelFacts::chunk_stop). So what is gone when a row is computed depends on
// the tokens before it alone. Scores and what is gone are a state of the sequence (state_storage.h): they are
// copied for forks, and a sequence that starts anew starts with none.
//
// H2O (Zhang et al. 2023, arXiv 2306.14048) keeps single positions of each head by the sum of their shares.
// Whole blocks of all layers and heads of a group, as here, are what a paged cache can free (PagedEviction,
// arXiv 2509.04377).
#ifndef TENSORWRIGHT_RUNTIME_CORE_KEPT_BLOCKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_KEPT_BLOCKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/ops/state_storage.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

// The state of one sequence in one group.
struct BlockScores {
  uint64_t* scores;  // [blocks of the longest sequence]
  uint8_t* gone;     // [blocks of the longest sequence]: 1 for a block that did not stay
};

// Returns the parts of a state of kept_bytes(blocks) bytes.
inline BlockScores block_scores(char* state, int32_t blocks) {
  auto* scores = reinterpret_cast<uint64_t*>(state);
  return {scores, reinterpret_cast<uint8_t*>(scores + blocks)};
}

class KeptBlocks {
 public:
  // Both must live as long as this does.
  KeptBlocks(const Plan& plan, const StateStorage& states);

  // Before a step is computed: sequences that start have no scores, and nothing of them is gone.
  void begin(const Step& step) const;
  // After a step was computed: decides for the sequences that it brought to a multiple of the interval.
  void end(const Step& step);
  // Returns which blocks of a slot are gone, [blocks of the longest sequence]; empty if the group has no
  // budget.
  std::span<const uint8_t> gone(int32_t group, int32_t slot) const;

 private:
  void decide(const BlockBudget& budget, const BlockScores& of, int32_t blocks);

  const StateStorage& states_;
  std::vector<BlockBudget> budgets_;  // [cache groups]; empty if no group has one
  int32_t block_size_, max_blocks_;
  std::vector<int32_t> open_;  // blocks that may go; room for all of a sequence
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_KEPT_BLOCKS_H_
