#include "runtime/core/speculation/measure_steps.h"

#include <algorithm>
#include <array>

#include "runtime/core/base/clock.h"

namespace tensorwright {

namespace {

constexpr double kMeasureSeconds = 0.5;
// The sizes take turns, and the fastest run of each counts: something else that has the processor for a while
// slows all of them.
constexpr int kRounds = 3;
constexpr std::array kSizes = {1, 2, 3, 4, 5, 6, 8, 12, kMeasuredTokens};

}  // namespace

Step prompt_step(const ModelFacts& facts, int32_t tokens) {
  Step step;
  step.seq_starts = {0, tokens};
  step.context_lens = {tokens};
  const int32_t blocks = (tokens - 1) / facts.block_size + 1;
  step.groups.resize(facts.block_bytes.size());
  for (GroupTables& group : step.groups) {
    group.max_blocks = blocks;
    for (int32_t block = 0; block < blocks; ++block) group.block_tables.push_back(block);
  }
  for (int32_t position = 0; position < tokens; ++position) {
    step.token_ids.push_back(position % facts.vocab_size);
    step.positions.push_back(position);
    step.logit_rows.push_back(position);
    for (GroupTables& group : step.groups) group.slots.push_back(position);
  }
  return step;
}

void measure_steps(const ModelFacts& facts, int32_t most, const std::function<void(const Step&)>& run,
                   const std::function<void(int32_t, double)>& tell) {
  // One block of each group is there in any case.
  most = std::min({most, facts.block_size, facts.max_seq_len});
  const Clock::time_point begin = Clock::now();
  run(prompt_step(facts, 1));  // it touches memory for the first time
  std::array<double, kSizes.size()> best = {};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kSizes.size() && kSizes[i] <= most; ++i) {
      if (seconds_since(begin) > kMeasureSeconds && best[0] > 0) break;
      const Step step = prompt_step(facts, kSizes[i]);
      const Clock::time_point start = Clock::now();
      run(step);
      const double seconds = seconds_since(start);
      best[i] = best[i] > 0 ? std::min(best[i], seconds) : seconds;
    }
  }
  for (size_t i = 0; i < kSizes.size(); ++i)
    if (best[i] > 0) tell(kSizes[i], best[i]);
}

}  // namespace tensorwright
