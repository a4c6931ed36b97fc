#include "runtime/core/engine/forced_tokens.h"

#include <algorithm>

namespace tensorwright {

namespace {

// Before a step it waits at most 1 / kWaitShare of the time that a step takes, and never longer than
// kMaxWait: sequences without a grammar wait too.
constexpr int kWaitShare = 8;
constexpr std::chrono::milliseconds kMaxWait{2};

bool is_guided(const Sequence& sequence) { return sequence.sampling->guided && !sequence.sampling->beams(); }

}  // namespace

// Returns how many tokens may follow the sequence's next token, which is drawn anyhow.
int32_t ForcedTokens::most(const Sequence& sequence) const {
  const int32_t left = sequence.sampling->max_tokens - sequence.generated();
  return std::clamp(std::min(left, max_seq_len_ - sequence.size()) - 1, 0, kMaxForced);
}

bool ForcedTokens::misses_mask(const Scheduler& scheduler) {
  bool missing = false;
  scheduler.for_each([&](const Sequence& sequence) {
    if (missing || !is_guided(sequence) || sequence.pending() != 1 || sequence.computed == 0) return;
    if (sequence.generated() == 0 || most(sequence) == 0) return;
    tokens_.clear();
    missing = !masks_.forced_tokens(sequence.id, sequence.completion, sequence.generated(), 1, &tokens_);
  });
  return missing;
}

void ForcedTokens::await_masks(const Scheduler& scheduler, std::vector<Event>* events) {
  const Clock::time_point until = Clock::now() + std::min<Clock::duration>(step_ / kWaitShare, kMaxWait);
  while (misses_mask(scheduler) && masks_.wait_for_masks(until, events)) {
  }
}

void ForcedTokens::extend(StepPlan& plan, Scheduler& scheduler) {
  int32_t rows = max_rows_ - plan.prompt_rows;
  for (size_t i = 0; i < plan.chunks.size() && rows > 0; ++i) {
    const PlannedChunk& chunk = plan.chunks[i];
    const Sequence& sequence = *chunk.sequence;
    if (!chunk.decode || !is_guided(sequence)) continue;
    const int32_t room = std::min({most(sequence), rows, scheduler.token_room(plan)});
    if (room <= 0) continue;
    tokens_.clear();
    masks_.forced_tokens(sequence.id, sequence.completion, sequence.generated(), room, &tokens_);
    const auto unknown =
        std::ranges::find_if(tokens_, [&](int32_t token) { return token < 0 || token >= vocab_size_; });
    tokens_.erase(unknown, tokens_.end());
    if (tokens_.empty()) continue;
    scheduler.extend(plan, i, tokens_, true);
    rows -= chunk.drafted;
  }
}

}  // namespace tensorwright
