// Scheduler with made-up sequences: budget, chunks, order, preemption, rollback.
#include "runtime/core/scheduler/scheduler.h"

#include <stdexcept>

#include "runtime/core/base/invariants.h"
#include "tests/cpp/scheduler_simulation.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// The chunks of a plan as (id, tokens).
std::vector<std::pair<int64_t, int32_t>> shape(const StepPlan& plan) {
  std::vector<std::pair<int64_t, int32_t>> result;
  for (const PlannedChunk& chunk : plan.chunks) result.emplace_back(chunk.sequence->id, chunk.tokens);
  return result;
}
using Shape = std::vector<std::pair<int64_t, int32_t>>;

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

TW_TEST(higher_priority_starts_first_and_runs_on) {
  Simulation s(100, 4, {1, 64, 0});
  s.scheduler.add(make(1, 4, 3));
  s.step();
  s.scheduler.add(make(2, 4, 2));
  s.scheduler.add(make(3, 4, 2, 0, 1));
  s.scheduler.add(make(4, 4, 2, 0, 2));
  s.scheduler.add(make(5, 4, 2, 0, 1));
  s.run();
  TW_CHECK_EQ(s.finished[1], 3);  // nobody is preempted for another's priority
  TW_CHECK(s.started[4] < s.started[3] && s.started[3] < s.started[5] && s.started[5] < s.started[2]);
}

TW_TEST(lower_priority_gives_way_when_blocks_run_out) {
  Simulation s(4, 2, {2, 64, 0});
  s.scheduler.add(make(1, 2, 6));
  s.scheduler.add(make(2, 2, 6, 0, 1));
  s.run();
  TW_CHECK(s.scheduler.stats().preemptions > 0);
  TW_CHECK(s.finished[2] < s.finished[1]);
}

TW_TEST(nobody_is_let_in_on_blocks_that_a_running_prefill_needs) {
  Simulation s(6, 2, {2, 16, 4});
  s.scheduler.add(make(1, 10, 2));
  s.scheduler.add(make(2, 4, 1));
  s.run();  // 2 would fit into the four blocks free after the first step, and be thrown out again
  TW_CHECK_EQ(s.scheduler.stats().preemptions, 0);
  TW_CHECK(s.started[2] > 3);
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

TW_TEST(prompt_rows_have_a_budget_of_their_own) {
  Simulation s(64, 2, {5, 32, 0, 0, 0, 6}, true);
  s.scheduler.add(make(1, 9, 4));
  s.step();
  for (int64_t id : {2, 3, 4}) {
    auto sequence = make(id, 9, 4);  // as 1's, which nobody who wants logprobs may reuse
    if (id < 4) change_sampling(*sequence, [](Sampling& sampling) { sampling.prompt_logprobs = 1; });
    s.scheduler.add(std::move(sequence));
  }
  std::vector<Shape> shapes;
  for (int i = 0; i < 4; ++i) {
    StepPlan plan = s.scheduler.plan();
    shapes.push_back(shape(plan));
    s.scheduler.rollback(plan);
    s.step();
  }
  TW_CHECK(shapes[0] == (Shape{{1, 1}, {2, 6}}));  // nobody overtakes 3, which would have no row
  TW_CHECK(shapes[1] == (Shape{{1, 1}, {2, 3}, {3, 4}, {4, 1}}));  // two rows of 2, four of 3
  TW_CHECK(shapes[2] == (Shape{{1, 1}, {2, 1}, {4, 1}, {3, 5}}));
  TW_CHECK(shapes[3] == (Shape{{2, 1}, {3, 1}, {4, 1}}));
}

TW_TEST(what_was_told_of_needs_no_row_again) {
  Simulation s(64, 2, {2, 32, 0, 0, 0, 3}, true);
  auto sequence = make(2, 9, 4);
  change_sampling(*sequence, [](Sampling& sampling) { sampling.prompt_logprobs = 0; });
  s.scheduler.add(std::move(sequence));
  s.step();
  TW_CHECK(s.scheduler.preempt(2));
  StepPlan plan = s.scheduler.plan();
  TW_CHECK(shape(plan) == (Shape{{2, 6}}));  // three again without rows, three more with
  TW_CHECK_EQ(plan.prompt_rows, 3);
  s.scheduler.rollback(plan);
  s.step();
  s.step();
  TW_CHECK(s.scheduler.preempt(2));
  TW_CHECK(shape(s.scheduler.plan()) == (Shape{{2, 2}}));  // all told: 10 tokens, of which 8 are remembered
}

TW_TEST(rollback_takes_everything_back) {
  Simulation s(16, 2, {4, 16, 0}, true);
  s.scheduler.add(make(1, 6, 9, 0));
  s.scheduler.add(make(2, 8, 9, 100));  // both need a new block in the next step
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

TW_TEST(a_sequence_asks_for_its_prefix_when_it_could_start_and_its_blocks_are_kept) {
  Simulation s(10, 4, {4, 64, 0}, true);
  std::vector<int64_t> asked;
  s.scheduler.on_start([&](const Sequence& sequence) {
    asked.push_back(sequence.id);
    return sequence.id == 2;
  });
  const auto plan = [&] {
    StepPlan made = s.scheduler.plan();
    const Shape chunks = shape(made);
    if (!made.chunks.empty()) s.scheduler.commit(made);
    return chunks;
  };
  s.scheduler.add(make(1, 30, 5));
  TW_CHECK(plan() == (Shape{{1, 30}}));
  s.scheduler.add(make(2, 20, 5, 100));
  TW_CHECK(plan().empty());
  TW_CHECK(asked == (std::vector<int64_t>{1}));  // two blocks are left, and it needs five
  s.scheduler.remove(1);
  TW_CHECK(plan().empty());
  TW_CHECK(asked == (std::vector<int64_t>{1, 2}) && s.scheduler.fetches(2, 0) && s.scheduler.only_fetches());
  s.scheduler.add(make(3, 12, 5, 200));
  s.scheduler.add(make(4, 24, 5, 300));
  TW_CHECK(plan() == (Shape{{3, 12}}));  // 4 would take blocks of 2
  TW_CHECK(asked == (std::vector<int64_t>{1, 2, 3}));
  s.scheduler.came(2, 0);
  TW_CHECK(plan() == (Shape{{2, 20}}));
  TW_CHECK(asked == (std::vector<int64_t>{1, 2, 3}));
}

// Blocks that nobody who runs holds give way before a sequence is preempted, and to one that runs alone.
TW_TEST(what_is_held_for_nobody_gives_way_first) {
  Simulation s(6, 4, {4, 64, 0}, true);
  std::vector<std::pair<BlockRef, BlockRef>> held;  // of both groups
  for (int i = 0; i < 5; ++i) held.emplace_back(s.kv.take_block(0), s.kv.take_block(1));
  int calls = 0;
  s.scheduler.on_lack([&] {
    ++calls;
    if (held.empty()) return false;
    held.pop_back();
    return true;
  });
  s.scheduler.add(make(1, 16, 5));
  StepPlan plan = s.scheduler.plan();
  TW_CHECK(shape(plan) == (Shape{{1, 4}}));  // it would run alone, so it starts with the block that there is
  TW_CHECK_EQ(calls, 0);
  s.scheduler.commit(plan);
  plan = s.scheduler.plan();
  TW_CHECK(shape(plan) == (Shape{{1, 12}}));
  TW_CHECK_EQ(calls, 3);
  s.scheduler.commit(plan);
  TW_CHECK_EQ(s.scheduler.stats().preemptions, 0);
  TW_CHECK_EQ(held.size(), 2u);
  held.clear();
}

// Counts that do not agree are found, each by its own name.
TW_TEST(a_block_that_no_sequence_holds_is_found) {
  Simulation s(16, 2, {2, 16, 0}, true);
  s.scheduler.add(make(1, 5, 9));
  s.step();
  s.scheduler.check();
  SequenceBlocks copy;
  s.scheduler.for_each([&](const Sequence& sequence) { copy = s.kv.fork(sequence.blocks); });
  TW_CHECK_THROWS(s.scheduler.check(), InvariantError);
  copy = SequenceBlocks();
  s.scheduler.check();
  TW_CHECK_THROWS(s.kv.check(0, 0), InvariantError);
}

TW_TEST(impossible_limits_are_refused) {
  KvBlocks kv(1, 4, 2, false);
  TW_CHECK_THROWS(Scheduler(kv, {4, 3, 0}), std::logic_error);
  TW_CHECK_THROWS(Scheduler(kv, {0, 3, 0}), std::logic_error);
}

TW_TEST_MAIN()
