#include "runtime/core/speculation/measure_steps.h"

#include <algorithm>
#include <chrono>

#include "runtime/core/base/clock.h"

namespace tensorwright {

namespace {

constexpr double kMeasureSeconds = 0.5;
// The first run of a size touches memory for the first time. The fastest of the others counts.
constexpr int kRuns = 4;

// Returns a step of one sequence whose prompt has `tokens` tokens.
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

}  // namespace

void measure_steps(const ModelFacts& facts, int32_t most, const std::function<void(const Step&)>& run,
                   const std::function<void(int32_t, double)>& tell) {
  // One block of each group is there in any case.
  most = std::min({most, facts.block_size, facts.max_seq_len});
  const Clock::time_point begin = Clock::now();
  auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (int32_t tokens : {1, 2, 3, 4, 5, 6, 8, 12, kMeasuredTokens}) {
    if (tokens > most || since(begin) > kMeasureSeconds) return;
    const Step step = prompt_step(facts, tokens);
    double best = 0;
    for (int i = 0; i < kRuns; ++i) {
      const Clock::time_point start = Clock::now();
      run(step);
      const double seconds = since(start);
      if (i > 0) best = best > 0 ? std::min(best, seconds) : seconds;
      if (since(begin) > kMeasureSeconds && i > 0) break;
    }
    if (best > 0) tell(tokens, best);
  }
}

}  // namespace tensorwright
