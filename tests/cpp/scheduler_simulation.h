// Made-up sequences and a scheduler that is stepped with them, checked at every step.
#ifndef TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_
#define TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "runtime/core/scheduler/scheduler.h"
#include "tests/cpp/check.h"

namespace tw_test {

using namespace tensorwright;

// A sequence's parameters, as `change` leaves them.
template <typename Change>
void change_sampling(Sequence& sequence, const Change& change) {
  Sampling sampling = sequence.sampling ? *sequence.sampling : Sampling();
  change(sampling);
  sequence.sampling = std::make_shared<const Sampling>(std::move(sampling));
}

inline std::unique_ptr<Sequence> make(int64_t id, int32_t prompt, int32_t max_tokens, int32_t salt = 0,
                                      int32_t priority = 0, int32_t n = 1) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  for (int32_t i = 0; i < prompt; ++i) sequence->tokens.push_back(salt + i);
  sequence->prompt_tokens = prompt;
  change_sampling(*sequence, [&](Sampling& sampling) {
    sampling.max_tokens = max_tokens;
    sampling.priority = priority;
    sampling.n = n;
  });
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
  int64_t max_chunks = 0, copies = 0, forked = 0, sat_out = 0;
  // One next token of so many is not there at once, at most kLate times in a completion; 0: all are.
  uint32_t late_every = 0;
  static constexpr int64_t kLate = 3, kLateSteps = 3;  // and comes at most so many steps later
  std::mt19937 random{11};
  using Name = std::pair<int64_t, int32_t>;
  std::map<Name, std::pair<Sequence*, int64_t>> due;  // who sits out, and after which step its token comes
  std::map<Name, int64_t> times;                      // how often each sat out

  // The states of recurrent layers are made up too: a slot holds all tokens that were computed in it.
  std::vector<std::vector<int32_t>> states;
  bool forking = false;

  // Two groups, the second with a window if one is given, which may be chunked.
  Simulation(int32_t blocks, int32_t block_size, SchedulerLimits l, bool prefix_cache = false,
             int32_t window = 0, StateShape state_shape = {}, bool chunked = false)
      : limits(l),
        kv({{blocks},
            {blocks, window,
             window ? std::min<int32_t>(blocks, window_blocks(window, l.max_tokens, block_size)) : 0,
             chunked}},
           block_size, prefix_cache, PrefixTree::Hash{secret_hash}, state_shape),
        scheduler(kv, l),
        states(static_cast<size_t>(kv.state_slots())) {
    kv.on_copy_state([this](int32_t from, int32_t to) {
      TW_CHECK(from != to);
      states.at(static_cast<size_t>(to)) = states.at(static_cast<size_t>(from));
    });
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
    std::set<int32_t> slots;
    int32_t tokens = 0, prompt_rows = 0;
    for (const PlannedChunk& chunk : plan.chunks) {
      TW_CHECK(seen.insert(chunk.sequence).second);
      TW_CHECK(chunk.tokens > 0 && chunk.tokens <= chunk.sequence->pending());
      if (limits.max_chunk) TW_CHECK(chunk.tokens <= limits.max_chunk);
      if (limits.chunk_multiple && !chunk.last())
        TW_CHECK((chunk.sequence->computed + chunk.tokens) % limits.chunk_multiple == 0);
      TW_CHECK_EQ(chunk.sequence->blocks.size(), kv.blocks_for(chunk.sequence->computed + chunk.tokens));
      const BlockTable& table = chunk.sequence->blocks.tables[1];
      if (int32_t window = kv.shape(1).window; window && chunk.tokens == 1)
        TW_CHECK(table.held() <= window_blocks(window, 1, kv.block_size()));
      TW_CHECK(table.first() <= kv.shape(1).first_seen(chunk.sequence->computed) / kv.block_size());
      if (!states.empty()) TW_CHECK(slots.insert(chunk.sequence->blocks.state.id()).second);
      tokens += chunk.tokens;
      prompt_rows += chunk.prompt_rows;
      check_own(*chunk.sequence);
    }
    TW_CHECK_EQ(tokens, plan.tokens);
    TW_CHECK_EQ(prompt_rows, plan.prompt_rows);
    TW_CHECK(prompt_rows <= limits.max_prompt_rows);
    if (!scheduler.idle() && due.empty()) TW_CHECK(!plan.chunks.empty());
    if (plan.chunks.empty()) {  // then all that run sit out
      scheduler.for_each([&](const Sequence& s) { TW_CHECK(s.computed == 0 || s.pending() == 0); });
    }
    return plan;
  }

  // Computes the states of a step: each must be that of the tokens before.
  void compute(const StepPlan& plan) {
    for (const PlannedChunk& chunk : plan.chunks) {
      if (states.empty()) return;
      const Sequence& sequence = *chunk.sequence;
      std::vector<int32_t>& state = states.at(static_cast<size_t>(sequence.blocks.state.id()));
      if (sequence.computed == 0) state.clear();
      const auto begin = sequence.tokens.begin(), at = begin + sequence.computed;
      TW_CHECK(std::equal(state.begin(), state.end(), begin, at));
      state.insert(state.end(), at, at + chunk.tokens);
    }
  }

  // A step that fails in the middle: some of its states are spoilt.
  void fail(StepPlan& plan) {
    compute(plan);
    scheduler.rollback(plan, true);
    scheduler.check();
  }

  // What a sequence writes is its own.
  void check_own(const Sequence& sequence) const {
    for (int32_t group = 0; group < kv.groups(); ++group) {
      for (int32_t i = sequence.computed / kv.block_size(); i < sequence.blocks.size(); ++i)
        TW_CHECK_EQ(kv.group(group).references(sequence.blocks.tables[group][i]), 1);
    }
  }

  void step() {
    for (auto it = due.begin(); it != due.end();) {
      auto [sequence, when] = it->second;
      it = when <= now ? due.erase(it) : std::next(it);
      if (when <= now) take_token(sequence);
    }
    if (scheduler.idle()) return;
    StepPlan plan = checked_plan();
    ++now;
    std::erase_if(due, [](const auto& entry) { return entry.second.first->pending() > 0; });  // preempted
    max_chunks = std::max<int64_t>(max_chunks, static_cast<int64_t>(plan.chunks.size()));
    std::vector<Sequence*> last;
    for (const PlannedChunk& chunk : plan.chunks) {
      started.try_emplace(chunk.sequence->id, now);
      chunk.sequence->scored += chunk.prompt_rows;
      if (chunk.last()) last.push_back(chunk.sequence);
    }
    compute(plan);
    scheduler.commit(plan);
    TW_CHECK(scheduler.waste_slots() <= static_cast<int64_t>(scheduler.running()) * (kv.block_size() - 1));
    forking = true;
    for (size_t i = 0, count = last.size(); i < count; ++i) {
      for (Sequence* fork : scheduler.fork(*last[i])) last.push_back(fork);
    }
    forking = false;
    TW_CHECK(scheduler.running() <= limits.max_seqs);
    scheduler.check();
    for (Sequence* sequence : last) {
      forked += sequence->completion > 0 && sequence->generated() == 0;
      TW_CHECK_EQ(sequence->scored,
                  sequence->sampling->prompt_logprobs < 0 ? 0 : sequence->prompt_tokens - 1);
      if (!is_late(sequence)) take_token(sequence);
    }
  }

  bool is_late(Sequence* sequence) {
    if (late_every == 0 || random() % late_every != 0) return false;
    Name name(sequence->id, sequence->completion);
    if (times[name] == kLate) return false;
    ++times[name];
    ++sat_out;
    due[name] = {sequence, now + 1 + static_cast<int64_t>(random() % kLateSteps)};
    return true;
  }

  void take_token(Sequence* sequence) {
    // Some completions go on the same for a while.
    int64_t own = sequence->generated() < 3 ? sequence->completion / 2 : sequence->completion;
    sequence->tokens.push_back(static_cast<int32_t>(1000 + sequence->id * 7 + sequence->size() + own * 999));
    if (sequence->generated() < sequence->sampling->max_tokens) return;
    int64_t id = sequence->id;
    if (++ended[id] == sequence->sampling->n) finished[id] = now;
    scheduler.remove(id, sequence->completion);
  }

  void run(int64_t max_steps = 100000) {
    while (!scheduler.idle() && max_steps-- > 0) step();
    TW_CHECK(scheduler.idle());
    TW_CHECK_EQ(kv.group(0).used(), 0);
    TW_CHECK_EQ(kv.group(1).used(), 0);
    TW_CHECK_EQ(kv.used_state_slots(), kv.snapshots());
    TW_CHECK(scheduler.stats().max_waste_slots < kv.block_size());
  }
};

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_SCHEDULER_SIMULATION_H_
