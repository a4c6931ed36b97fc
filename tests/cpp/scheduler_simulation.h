// Made-up sequences and a scheduler that is stepped with them, checked at every step.
#ifndef TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_
#define TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "runtime/core/scheduler.h"
#include "tests/cpp/check.h"

namespace tw_test {

using namespace tensorwright;

inline std::unique_ptr<Sequence> make(int64_t id, int32_t prompt, int32_t max_tokens, int32_t salt = 0,
                                      int32_t priority = 0, int32_t n = 1) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  for (int32_t i = 0; i < prompt; ++i) sequence->tokens.push_back(salt + i);
  sequence->prompt_tokens = prompt;
  sequence->sampling.max_tokens = max_tokens;
  sequence->sampling.priority = priority;
  sequence->sampling.n = n;
  sequence->forks = n - 1;
  return sequence;
}

// Whether a request could ever run, all its completions side by side; as validate_request has it.
inline bool fits(int32_t blocks, int32_t block_size, int32_t prompt, int32_t max_tokens, int32_t n) {
  int32_t shared = prompt / block_size;
  return shared + n * ((prompt + max_tokens - 2) / block_size + 1 - shared) <= blocks;
}

// Steps a scheduler and checks at every step what must hold at every step.
struct Simulation {
  SchedulerLimits limits;
  KvBlocks kv;
  Scheduler scheduler;
  int64_t now = 0;
  std::map<int64_t, int64_t> started, finished;  // id -> step
  std::map<int64_t, int32_t> ended;              // id -> completions
  int64_t most_chunks = 0, copies = 0, forked = 0;

  // Two groups, the second with a window if one is given.
  Simulation(int32_t blocks, int32_t block_size, SchedulerLimits l, bool prefix_cache = false,
             int32_t window = 0)
      : limits(l),
        kv({{blocks},
            {blocks, window,
             window ? std::min<int32_t>(blocks, window_blocks(window, l.max_tokens, block_size)) : 0}},
           block_size, prefix_cache),
        scheduler(kv, l) {
    kv.on_copy([this](int32_t group, int32_t from, int32_t to) {
      TW_CHECK(from != to && kv.group(group).references(from) > 1 && kv.group(group).references(to) == 1);
      ++copies;
    });
  }

  StepPlan checked_plan() {
    StepPlan plan = scheduler.plan();
    TW_CHECK(plan.tokens <= limits.max_tokens);
    int32_t places = 0;
    scheduler.for_each(
        [&](const Sequence& sequence) { places += sequence.computed ? sequence.places() : 0; });
    TW_CHECK(scheduler.running() <= limits.max_seqs && places <= limits.max_seqs);
    std::set<const Sequence*> seen;
    int32_t tokens = 0;
    for (const PlannedChunk& chunk : plan.chunks) {
      TW_CHECK(seen.insert(chunk.sequence).second);
      TW_CHECK(chunk.tokens > 0 && chunk.tokens <= chunk.sequence->pending());
      if (limits.max_chunk) TW_CHECK(chunk.tokens <= limits.max_chunk);
      TW_CHECK_EQ(chunk.sequence->blocks.size(), kv.blocks_for(chunk.sequence->computed + chunk.tokens));
      const BlockTable& table = chunk.sequence->blocks.tables[1];
      if (int32_t window = kv.shape(1).window; window && chunk.tokens == 1)
        TW_CHECK(table.held() <= window_blocks(window, 1, kv.block_size()));
      if (int32_t window = kv.shape(1).window)
        TW_CHECK(table.first() <= std::max(0, chunk.sequence->computed - window + 1) / kv.block_size());
      tokens += chunk.tokens;
      check_own(*chunk.sequence);
    }
    TW_CHECK_EQ(tokens, plan.tokens);
    if (!scheduler.idle()) TW_CHECK(!plan.chunks.empty());
    return plan;
  }

  // What a sequence writes is its own.
  void check_own(const Sequence& sequence) const {
    for (int32_t group = 0; group < kv.groups(); ++group) {
      for (int32_t i = sequence.computed / kv.block_size(); i < sequence.blocks.size(); ++i)
        TW_CHECK_EQ(kv.group(group).references(sequence.blocks.tables[group][i]), 1);
    }
  }

  void step() {
    StepPlan plan = checked_plan();
    ++now;
    most_chunks = std::max<int64_t>(most_chunks, static_cast<int64_t>(plan.chunks.size()));
    std::vector<Sequence*> last;
    for (const PlannedChunk& chunk : plan.chunks) {
      started.try_emplace(chunk.sequence->id, now);
      if (chunk.last()) last.push_back(chunk.sequence);
    }
    scheduler.commit(plan);
    TW_CHECK(scheduler.waste_slots() <= static_cast<int64_t>(scheduler.running()) * (kv.block_size() - 1));
    for (size_t i = 0, count = last.size(); i < count; ++i) {
      for (Sequence* fork : scheduler.fork(*last[i])) last.push_back(fork);
    }
    TW_CHECK(scheduler.running() <= limits.max_seqs);
    for (Sequence* sequence : last) {
      forked += sequence->completion > 0 && sequence->generated() == 0;
      // Some completions go on the same for a while.
      int64_t own = sequence->generated() < 3 ? sequence->completion / 2 : sequence->completion;
      sequence->tokens.push_back(
          static_cast<int32_t>(1000 + sequence->id * 7 + sequence->size() + own * 999));
      if (sequence->generated() < sequence->sampling.max_tokens) continue;
      int64_t id = sequence->id;
      if (++ended[id] == sequence->sampling.n) finished[id] = now;
      scheduler.remove(id, sequence->completion);
    }
  }

  void run(int64_t most_steps = 100000) {
    while (!scheduler.idle() && most_steps-- > 0) step();
    TW_CHECK(scheduler.idle());
    TW_CHECK_EQ(kv.group(0).used(), 0);
    TW_CHECK_EQ(kv.group(1).used(), 0);
    TW_CHECK(scheduler.stats().max_waste_slots < kv.block_size());
  }
};

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_
