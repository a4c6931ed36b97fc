// The timeline and the spans of a team's threads: what is kept, what is dropped, and that nothing is by
// default. And plan costs: what a step costs without weights, and what is refused.
#include "runtime/core/base/timeline.h"

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/executor/plan_costs.h"
#include "tests/cpp/check.h"
#include "tests/cpp/toy_plan.h"

using namespace tensorwright;  // NOLINT

TW_TEST(a_timeline_keeps_no_more_than_it_has_room_for) {
  Timeline timeline;
  constexpr int64_t kMore = 5, kRoom = static_cast<int64_t>(Timeline::kMaxSpans);
  for (int64_t i = 0; i < kRoom + kMore; ++i) timeline.add({i, i + 1, i, SpanKind::kOp});
  TW_CHECK(timeline.full());
  TW_CHECK_EQ(timeline.spans().size(), Timeline::kMaxSpans);
  TW_CHECK_EQ(timeline.spans().back().id, kRoom - 1);
  TW_CHECK_EQ(timeline.dropped(), kMore);
  timeline.add({0, 1, 7, SpanKind::kStep});
  TW_CHECK_EQ(timeline.spans().back().id, 7);
}

TW_TEST(any_thread_may_add_to_a_timeline) {
  Timeline timeline;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&timeline, t] {
      for (int i = 0; i < 1000; ++i) timeline.add({0, 1, t});
    });
  }
  for (std::thread& thread : threads) thread.join();
  TW_CHECK_EQ(timeline.spans().size(), size_t{4000});
  TW_CHECK_EQ(timeline.dropped(), 0);
}

// In each region the spans of the threads have all of its tasks, end inside it, and name each thread once.
TW_TEST(a_watched_team_keeps_every_task) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    team.run(8, [](int, int) {});
    TW_CHECK(team.spans().empty());
    team.watch(true);
    for (int region = 0; region < 300; ++region) {
      const int tasks = region % 11;
      std::atomic<int> ran{0};
      const int64_t begin = Timeline::now();
      team.run(tasks, [&](int, int) { ++ran; });
      const int64_t end = Timeline::now();
      int counted = 0;
      std::vector<bool> seen(static_cast<size_t>(threads));
      for (const ThreadTeam::ThreadSpan& span : team.spans()) {
        counted += span.tasks;
        TW_CHECK(span.begin <= span.end && span.end <= end);
        // A worker looks for work as soon as it has seen the region before end.
        TW_CHECK(span.thread != 0 || span.begin >= begin);
        TW_CHECK(!seen.at(static_cast<size_t>(span.thread)));
        seen[static_cast<size_t>(span.thread)] = true;
      }
      TW_CHECK_EQ(counted, tasks);
      TW_CHECK_EQ(ran.load(), tasks);
      team.forget_spans();
    }
    team.watch(false);
    team.run(8, [](int, int) {});
    TW_CHECK(team.spans().empty());
  }
}

TW_TEST(costs_of_a_step_need_no_weights) {
  const PlanCosts costs(tw_test::ToyPlan().bytes());
  const std::vector<InstructionCost> one = costs.step({{1, 1}}, 1), many = costs.step({{1, 1}, {3, 9}}, 2);
  TW_CHECK_EQ(one.size(), many.size());
  int64_t operations = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    TW_CHECK(one[i].weight_bytes <= one[i].cost.bytes);
    TW_CHECK_EQ(one[i].weight_bytes, many[i].weight_bytes);
    TW_CHECK(one[i].cost.operations <= many[i].cost.operations);
    operations += one[i].cost.operations;
  }
  TW_CHECK(operations > 0);
}

TW_TEST(steps_that_cannot_be_are_refused) {
  const PlanCosts costs(tw_test::ToyPlan().bytes());
  const int32_t longest = static_cast<int32_t>(tw_test::ToyPlan::kMaxLen);
  const auto refused = [&](const std::vector<SequenceShape>& sequences, int32_t rows) {
    try {
      costs.step(sequences, rows);
    } catch (const Error& error) {
      return std::string(error.type()) == "InvalidRequestError";
    }
    return false;
  };
  TW_CHECK(refused({}, 0));
  TW_CHECK(refused({{0, 1}}, 0));
  TW_CHECK(refused({{2, 1}}, 1));
  TW_CHECK(refused({{1, longest + 1}}, 1));
  TW_CHECK(refused({{1, 1}}, 2));
  TW_CHECK(refused({{1, 1}}, -1));
  TW_CHECK(!refused({{1, longest}}, 1));
}

TW_TEST(buffers_lie_inside_their_memory) {
  const PlanCosts costs(tw_test::ToyPlan().bytes());
  const std::vector<BufferUse> uses = costs.buffers();
  TW_CHECK(!uses.empty());
  for (const BufferUse& use : uses) {
    const uint64_t room =
        use.of_rows ? costs.plan().header.row_arena_bytes : costs.plan().header.token_arena_bytes;
    TW_CHECK(use.first <= use.last);
    TW_CHECK(static_cast<uint64_t>(use.offset + use.bytes) <= room);
  }
}

TW_TEST_MAIN()
