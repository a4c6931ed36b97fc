// Scheduler with made-up sequences: budget, chunks, order, preemption, rollback, the fairness bound, no leak.
#include "runtime/core/scheduler.h"

#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

std::unique_ptr<Sequence> make(int64_t id, int32_t prompt, int32_t max_tokens, int32_t salt = 0) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  for (int32_t i = 0; i < prompt; ++i) sequence->tokens.push_back(salt + i);
  sequence->prompt_tokens = prompt;
  sequence->sampling.max_tokens = max_tokens;
  return sequence;
}

// Steps a scheduler and checks at every step what must hold at every step.
struct Simulation {
  SchedulerLimits limits;
  KvBlocks kv;
  Scheduler scheduler;
  int64_t now = 0;
  std::map<int64_t, int64_t> started, finished;  // id -> step
  int64_t most_chunks = 0;

  Simulation(int32_t blocks, int32_t block_size, SchedulerLimits l, bool prefix_cache = false)
      : limits(l), kv(2, blocks, block_size, prefix_cache), scheduler(kv, l) {}

  StepPlan checked_plan() {
    StepPlan plan = scheduler.plan();
    TW_CHECK(plan.tokens <= limits.max_tokens);
    TW_CHECK(scheduler.running() <= limits.max_seqs);
    std::set<const Sequence*> seen;
    int32_t tokens = 0;
    for (const PlannedChunk& chunk : plan.chunks) {
      TW_CHECK(seen.insert(chunk.sequence).second);
      TW_CHECK(chunk.tokens > 0 && chunk.tokens <= chunk.sequence->pending());
      if (limits.max_chunk) TW_CHECK(chunk.tokens <= limits.max_chunk);
      TW_CHECK_EQ(chunk.sequence->blocks.size(), kv.blocks_for(chunk.sequence->computed + chunk.tokens));
      tokens += chunk.tokens;
    }
    TW_CHECK_EQ(tokens, plan.tokens);
    if (!scheduler.idle()) TW_CHECK(!plan.chunks.empty());
    return plan;
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
    for (Sequence* sequence : last) {
      sequence->tokens.push_back(static_cast<int32_t>(1000 + sequence->id * 7 + sequence->size()));
      if (sequence->generated() < sequence->sampling.max_tokens) continue;
      finished[sequence->id] = now;
      scheduler.remove(sequence->id);
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

// The chunks of a plan as (id, tokens).
std::vector<std::pair<int64_t, int32_t>> shape(const StepPlan& plan) {
  std::vector<std::pair<int64_t, int32_t>> result;
  for (const PlannedChunk& chunk : plan.chunks) result.emplace_back(chunk.sequence->id, chunk.tokens);
  return result;
}
using Shape = std::vector<std::pair<int64_t, int32_t>>;

// The bound that scheduler.h states.
int64_t bound(const SchedulerLimits& limits, int64_t prompt, int64_t max_tokens) {
  int64_t c = limits.max_tokens - limits.max_seqs + 1;
  if (limits.max_chunk) c = std::min<int64_t>(c, limits.max_chunk);
  return (prompt + max_tokens + c - 1) / c + max_tokens;
}

}  // namespace

TW_TEST(decodes_come_first_then_chunks_fill_the_budget_in_order) {
  Simulation s(100, 4, {4, 10, 0});
  s.scheduler.add(make(1, 6, 5));
  s.step();
  s.scheduler.add(make(2, 12, 5));
  s.scheduler.add(make(3, 3, 5));
  TW_CHECK(shape(s.scheduler.plan()) == (Shape{{1, 1}, {2, 9}}));
}

TW_TEST(chunks_mix_with_decodes_until_prefill_is_done) {
  Simulation s(100, 4, {4, 8, 5});
  s.scheduler.add(make(1, 2, 9));
  s.scheduler.add(make(2, 11, 5));
  s.scheduler.add(make(3, 9, 5));
  std::vector<Shape> shapes;
  for (int i = 0; i < 5; ++i) {
    StepPlan plan = s.scheduler.plan();
    shapes.push_back(shape(plan));
    s.scheduler.rollback(plan);  // a look, then the step itself: the same again
    s.step();
  }
  TW_CHECK(shapes[0] == (Shape{{1, 2}, {2, 5}, {3, 1}}));
  TW_CHECK(shapes[1] == (Shape{{1, 1}, {2, 5}, {3, 2}}));
  TW_CHECK(shapes[2] == (Shape{{1, 1}, {2, 1}, {3, 5}}));  // the last token of 2 is as cheap as a decode
  TW_CHECK(shapes[3] == (Shape{{1, 1}, {2, 1}, {3, 1}}));
}

TW_TEST(nobody_overtakes_in_the_queue) {
  Simulation s(4, 4, {4, 64, 0});
  s.scheduler.add(make(1, 8, 4));
  s.scheduler.add(make(2, 12, 1));  // does not fit beside 1
  s.scheduler.add(make(3, 1, 1));   // would
  s.step();
  TW_CHECK_EQ(s.scheduler.waiting(), 2);
  s.run();
  TW_CHECK(s.started[3] >= s.started[2]);
}

TW_TEST(a_slot_freed_is_used_in_the_next_step) {
  Simulation s(100, 4, {2, 64, 0});
  for (int64_t id = 1; id <= 3; ++id) s.scheduler.add(make(id, 4, static_cast<int32_t>(id)));
  s.step();
  TW_CHECK_EQ(s.finished[1], 1);
  TW_CHECK_EQ(s.kv.group(0).used(), 1);  // those of 1 are free already
  s.step();
  TW_CHECK_EQ(s.started[3], 2);
  s.run();
}

TW_TEST(the_latest_is_preempted_keeps_its_tokens_and_its_place) {
  Simulation s(4, 2, {3, 16, 0});
  s.scheduler.add(make(1, 3, 5, 10));
  s.scheduler.add(make(2, 2, 4, 20));
  s.step();
  s.scheduler.add(make(3, 2, 1, 30));
  s.step();  // 1 now has four positions in two blocks, 2 has three in two
  TW_CHECK_EQ(s.kv.available(), 0);
  s.step();  // 1 needs a third block
  TW_CHECK_EQ(s.scheduler.stats().preemptions, 1);
  std::vector<std::pair<int64_t, int32_t>> order;  // running, then waiting
  s.scheduler.for_each(
      [&](const Sequence& sequence) { order.emplace_back(sequence.id, sequence.generated()); });
  TW_CHECK(order == (Shape{{1, 3}, {2, 2}, {3, 0}}));
  s.run();
  TW_CHECK(s.finished[1] < s.finished[2]);
  TW_CHECK(s.started[3] > s.started[2]);
}

TW_TEST(a_preempted_sequence_finds_its_own_prefix_again) {
  Simulation s(64, 2, {2, 64, 0}, true);
  s.scheduler.add(make(1, 9, 6));
  for (int i = 0; i < 3; ++i) s.step();
  TW_CHECK(s.scheduler.preempt(1));
  TW_CHECK(!s.scheduler.preempt(1));
  TW_CHECK_EQ(s.kv.group(0).used(), 0);
  TW_CHECK(shape(s.scheduler.plan()) == (Shape{{1, 2}}));  // 12 tokens, the first 10 remembered
}

TW_TEST(rollback_takes_everything_back) {
  Simulation s(16, 2, {4, 16, 0}, true);
  s.scheduler.add(make(1, 5, 9, 0));
  s.scheduler.add(make(2, 7, 9, 100));
  s.step();
  s.scheduler.add(make(3, 5, 9, 0));  // shares the prefix of 1
  s.scheduler.add(make(4, 40, 1, 200));
  auto state = [&] {
    std::vector<int64_t> all = {s.kv.group(0).free(),
                                s.kv.group(0).idle(),
                                s.kv.group(1).used(),
                                s.scheduler.running(),
                                s.scheduler.waiting(),
                                s.scheduler.stats().steps,
                                s.scheduler.stats().decode_tokens,
                                s.scheduler.stats().prefix_hit_tokens};
    s.scheduler.for_each([&](const Sequence& sequence) {
      for (int64_t x : {sequence.id, int64_t{sequence.computed}, int64_t{sequence.blocks.size()},
                        int64_t{sequence.cached_tokens}, int64_t{sequence.size()}}) {
        all.push_back(x);
      }
    });
    return all;
  };
  std::vector<int64_t> before = state();
  StepPlan plan = s.checked_plan();
  TW_CHECK(shape(plan) == (Shape{{1, 1}, {2, 1}, {3, 1}}));
  TW_CHECK(state() != before);
  Shape first = shape(plan);
  s.scheduler.rollback(plan);
  TW_CHECK(state() == before);
  TW_CHECK(plan.chunks.empty());
  plan = s.checked_plan();
  TW_CHECK(shape(plan) == first);
  s.scheduler.rollback(plan);
  TW_CHECK_EQ(s.scheduler.stats().rolled_back, 2);
  TW_CHECK(s.scheduler.remove(4) != nullptr);
  s.run();
}

TW_TEST(one_share_of_a_step_alone) {
  Simulation s(16, 2, {2, 16, 0});
  s.scheduler.add(make(1, 5, 9));
  s.step();
  s.scheduler.add(make(2, 6, 9));
  s.scheduler.add(make(3, 6, 9));
  StepPlan plan = s.scheduler.plan_only(2);
  TW_CHECK(shape(plan) == (Shape{{2, 6}}));
  s.scheduler.commit(plan);
  TW_CHECK(s.scheduler.plan_only(3).chunks.empty());  // no slot
  TW_CHECK(s.scheduler.plan_only(4).chunks.empty());  // no such sequence
  TW_CHECK(shape(s.scheduler.plan_only(1)) == (Shape{{1, 1}}));
}

TW_TEST(remove_frees_at_once_wherever_the_sequence_is) {
  Simulation s(16, 2, {1, 16, 0});
  s.scheduler.add(make(1, 5, 9));
  s.scheduler.add(make(2, 5, 9));
  s.step();
  TW_CHECK(s.scheduler.remove(2) != nullptr);
  TW_CHECK(s.scheduler.remove(1) != nullptr);
  TW_CHECK(s.scheduler.remove(1) == nullptr);
  TW_CHECK_EQ(s.kv.group(0).free(), 16);
  TW_CHECK(s.scheduler.idle());
}

TW_TEST(impossible_limits_are_refused) {
  KvBlocks kv(1, 4, 2, false);
  TW_CHECK_THROWS(Scheduler(kv, {4, 3, 0}), std::logic_error);
  TW_CHECK_THROWS(Scheduler(kv, {0, 3, 0}), std::logic_error);
}

// The bound is not only kept but nearly reached, so it says something.
TW_TEST(the_fairness_bound_is_tight) {
  SchedulerLimits limits{1, 4, 0};
  Simulation s(100, 4, limits);
  s.scheduler.add(make(1, 40, 30));
  s.scheduler.add(make(2, 4, 1));
  s.run();
  int64_t most = bound(limits, 40, 30) + 1;
  TW_CHECK(s.started[2] <= most);
  TW_CHECK(s.started[2] >=
           most - 9);  // 30 generated tokens in chunks of 4 are what only a preemption would cost
}

// Arrivals without end, blocks so few that preemption is the rule: everybody starts and ends within the
// bound.
TW_TEST(random_crowds_keep_the_fairness_bound_and_leak_nothing) {
  std::mt19937 random(5);
  int64_t preemptions = 0, most_chunks = 0;
  for (int round = 0; round < 60; ++round) {
    int32_t max_seqs = 1 + static_cast<int32_t>(random() % 6);
    SchedulerLimits limits{max_seqs, max_seqs + static_cast<int32_t>(random() % 12),
                           static_cast<int32_t>(random() % 3 * 3)};
    int32_t block_size = 1 + static_cast<int32_t>(random() % 4),
            blocks = 12 + static_cast<int32_t>(random() % 20);
    Simulation s(blocks, block_size, limits, random() % 2);
    std::map<int64_t, int64_t> must_start, must_finish, need;
    for (int64_t id = 1; id <= 40; ++id) {
      int32_t room = blocks * block_size;
      int32_t prompt = 1 + static_cast<int32_t>(random() % (room * 2 / 3));
      int32_t most = 1 + static_cast<int32_t>(random() % (room + 1 - prompt));
      need[id] = bound(limits, prompt, most);
      int64_t ahead = 0;
      for (int64_t other = 1; other < id; ++other) ahead += s.finished.count(other) ? 0 : need[other];
      must_start[id] = s.now + ahead + 1;
      must_finish[id] = s.now + ahead + need[id];
      s.scheduler.add(make(id, prompt, most, static_cast<int32_t>(random() % 2) * 1000));
      for (uint32_t i = random() % 8; i > 0 && !s.scheduler.idle(); --i) s.step();
    }
    s.run();
    for (auto [id, most] : must_start) TW_CHECK(s.started[id] <= most);
    for (auto [id, most] : must_finish) TW_CHECK(s.finished[id] <= most);
    preemptions += s.scheduler.stats().preemptions;
    most_chunks = std::max(most_chunks, s.most_chunks);
  }
  TW_CHECK(preemptions > 100);
  TW_CHECK(most_chunks > 4);
}

// Rollbacks, removals and forced preemptions at random: the scheduler comes to an end and every block comes
// back.
TW_TEST(random_trouble_leaks_nothing) {
  std::mt19937 random(6);
  for (int round = 0; round < 40; ++round) {
    SchedulerLimits limits{4, 12, 0, 1 + static_cast<int32_t>(random() % 3), random()};
    Simulation s(14, 3, limits, random() % 2);
    for (int64_t id = 1; id <= 30; ++id) {
      int32_t prompt = 1 + static_cast<int32_t>(random() % 25);
      s.scheduler.add(make(id, prompt, 1 + static_cast<int32_t>(random() % (42 - prompt)), 0));
      if (random() % 4 == 0) s.scheduler.remove(1 + static_cast<int64_t>(random() % id));
      if (random() % 2) {
        StepPlan plan = s.checked_plan();
        s.scheduler.rollback(plan);
      }
      if (!s.scheduler.idle()) s.step();
    }
    s.run();
    TW_CHECK(s.scheduler.stats().preemptions > 0);
  }
}

TW_TEST_MAIN()
