#include "runtime/core/ops/kept_blocks.h"

#include <algorithm>
#include <cstring>

namespace tensorwright {

KeptBlocks::KeptBlocks(const Plan& plan, const StateStorage& states)
    : states_(states),
      budgets_(plan.budgets()),
      block_size_(static_cast<int32_t>(plan.header.block_size)),
      max_blocks_(plan.max_blocks()) {
  if (!budgets_.empty()) open_.reserve(static_cast<size_t>(max_blocks_));
}

void KeptBlocks::begin(const Step& step) const {
  for (const BlockBudget& budget : budgets_) {
    for (int32_t seq = 0; budget.kept > 0 && seq < step.seqs(); ++seq) {
      if (step.first_position(seq) > 0) continue;
      char* state = states_.at(static_cast<size_t>(budget.state), step.state_slots[static_cast<size_t>(seq)]);
      std::memset(state, 0, kept_bytes(max_blocks_));
    }
  }
}

void KeptBlocks::end(const Step& step) {
  for (const BlockBudget& budget : budgets_) {
    for (int32_t seq = 0; budget.kept > 0 && seq < step.seqs(); ++seq) {
      const int32_t positions = step.context_lens[static_cast<size_t>(seq)];
      if (positions % budget.interval != 0) continue;
      char* state = states_.at(static_cast<size_t>(budget.state), step.state_slots[static_cast<size_t>(seq)]);
      decide(budget, block_scores(state, max_blocks_), positions / block_size_);
    }
  }
}

void KeptBlocks::decide(const BlockBudget& budget, const BlockScores& of, int32_t blocks) {
  const auto held = static_cast<int32_t>(std::count(of.gone, of.gone + blocks, uint8_t{0}));
  if (const int32_t over = held - budget.kept; over > 0) {
    open_.clear();
    for (int32_t block = budget.sinks; block < blocks - budget.recent; ++block) {
      if (!of.gone[block]) open_.push_back(block);
    }
    // The plan keeps more than the first and the recent blocks, so there are enough.
    std::nth_element(open_.begin(), open_.begin() + over - 1, open_.end(), [&](int32_t a, int32_t b) {
      return of.scores[a] != of.scores[b] ? of.scores[a] < of.scores[b] : a > b;
    });
    for (int32_t i = 0; i < over; ++i) of.gone[open_[static_cast<size_t>(i)]] = 1;
  }
  for (int32_t block = 0; block < blocks; ++block) of.scores[block] >>= 1;
}

std::span<const uint8_t> KeptBlocks::gone(int32_t group, int32_t slot) const {
  const auto g = static_cast<size_t>(group);
  if (g >= budgets_.size() || budgets_[g].kept == 0) return {};
  char* state = states_.at(static_cast<size_t>(budgets_[g].state), slot);
  return {block_scores(state, max_blocks_).gone, static_cast<size_t>(max_blocks_)};
}

}  // namespace tensorwright
