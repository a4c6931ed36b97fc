// Who starts first among tenants and priorities, what a pace holds back, and when a deadline cannot be met.
#include <map>
#include <vector>

#include "runtime/core/engine/engine_core.h"
#include "runtime/core/scheduler/step_pace.h"
#include "runtime/core/simulation/fleet.h"
#include "tests/cpp/engine_cases.h"
#include "tests/cpp/scheduler_simulation.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

std::unique_ptr<Sequence> of_tenant(int64_t id, int32_t tenant, double weight = 1, int32_t prompt = 8,
                                    int32_t max_tokens = 4) {
  auto sequence = make(id, prompt, max_tokens, static_cast<int32_t>(id) * 100);
  change_sampling(*sequence, [&](Sampling& sampling) {
    sampling.tenant = tenant;
    sampling.tenant_weight = weight;
  });
  return sequence;
}

Clock::time_point at(double seconds) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

TW_TEST(tenants_share_by_their_weights_however_much_they_send) {
  Simulation s(200, 4, {2, 32, 0});
  int64_t id = 0;
  // The greedy tenant has a long queue before the others come.
  for (int i = 0; i < 200; ++i) s.scheduler.add(of_tenant(++id, 1));
  for (int i = 0; i < 100; ++i) s.scheduler.add(of_tenant(++id, 2, 3));
  for (int i = 0; i < 100; ++i) s.scheduler.add(of_tenant(++id, 3, 1));
  while (s.finished.size() < 100) s.step();
  std::map<int32_t, int> ended;
  for (const auto& [request, when] : s.finished) ++ended[request <= 200 ? 1 : request <= 300 ? 2 : 3];
  TW_CHECK(ended[1] >= 19 && ended[1] <= 21);
  TW_CHECK(ended[2] >= 58 && ended[2] <= 62);
  TW_CHECK(ended[3] >= 19 && ended[3] <= 21);
  // Within a tenant the older go first.
  TW_CHECK(s.started[201] < s.started[203] && s.started[203] < s.started[205]);
  s.run();
}

TW_TEST(a_tenant_that_was_away_has_saved_up_nothing_and_waits_for_nobodys_queue) {
  Simulation s(200, 4, {1, 32, 0});
  for (int64_t id = 1; id <= 40; ++id) s.scheduler.add(of_tenant(id, 1));
  while (s.finished.size() < 20) s.step();
  for (int64_t id = 101; id <= 140; ++id) s.scheduler.add(of_tenant(id, 2));
  while (s.finished.size() < 40) s.step();
  int mine = 0;
  for (const auto& [request, when] : s.finished) mine += request > 100;
  TW_CHECK(mine >= 9 && mine <= 11);  // half of the 20 since it came
  s.run();
}

TW_TEST(what_the_cache_has_costs_a_tenant_nothing) {
  Simulation s(200, 4, {1, 64, 0}, true);
  s.scheduler.add(make(1, 33, 2));  // the prompt that tenant 1 sends again and again
  s.run();
  int64_t id = 1;
  for (int i = 0; i < 20; ++i) {
    auto sequence = make(++id, 33, 2);
    change_sampling(*sequence, [](Sampling& sampling) { sampling.tenant = 1; });
    s.scheduler.add(std::move(sequence));
  }
  for (int i = 0; i < 20; ++i) s.scheduler.add(of_tenant(++id, 2, 1, 33, 2));
  while (s.finished.size() < 21) s.step();
  int cached = 0;
  for (const auto& [request, when] : s.finished) cached += request > 1 && request <= 21;
  TW_CHECK(cached >= 15);
  s.run();
}

TW_TEST(a_rolled_back_start_is_not_charged) {
  Simulation s(200, 4, {1, 32, 0});
  s.scheduler.add(of_tenant(1, 1));
  s.scheduler.add(of_tenant(2, 2));
  for (int i = 0; i < 3; ++i) {
    StepPlan plan = s.checked_plan();
    TW_CHECK_EQ(plan.chunks.at(0).sequence->id, 1);
    s.scheduler.rollback(plan);
  }
  s.run();
  TW_CHECK(s.started[1] < s.started[2]);
}

TW_TEST(forgotten_tenants_take_no_memory) {
  FairShare shares;
  shares.join(1);
  for (int32_t tenant = 2; tenant < 1000; ++tenant) {
    shares.join(tenant);
    shares.charge(tenant, 10, 1);
    shares.charge(1, 10, 1);
    shares.leave(tenant);
  }
  TW_CHECK(shares.known() <= 3);
  shares.leave(1);
  shares.join(5);
  TW_CHECK(shares.alone());
  TW_CHECK_EQ(shares.served(5), 0.0);
}

// One request at a time runs, each for a second. A request of priority 3 comes every second.
TW_TEST(ageing_bounds_how_long_a_low_priority_waits) {
  const auto start_of_low = [](double ageing) {
    const Clock::HeldHere held;
    Simulation s(200, 4, {.max_seqs = 1, .max_tokens = 32, .ageing_s = ageing});
    double now = 0;
    const auto come = [&](int64_t id, int32_t priority) {
      auto sequence = make(id, 4, 1, 0, priority);
      sequence->arrived = at(now);
      s.scheduler.add(std::move(sequence));
    };
    come(1, 3);
    come(2, 0);
    for (int64_t id = 3; id < 60; ++id, now += 1) {
      Clock::HeldHere::set(at(now));
      come(id, 3);
      s.step();
      if (s.started.count(2)) return now;
    }
    s.run();
    return 1e9;
  };
  TW_CHECK_EQ(start_of_low(0), 1e9);  // as long as they keep coming
  // (3 - 0) * 5 s, and then its turn among those of priority 3 that came after it: at once.
  TW_CHECK_EQ(start_of_low(5), 15.0);
  TW_CHECK_EQ(start_of_low(1), 3.0);
}

TW_TEST(a_pace_holds_back_prompts_beside_decodes_and_starts) {
  Simulation s(200, 4, {4, 32, 0});
  s.scheduler.set_pace({5, 2});
  s.scheduler.add(make(1, 20, 9));
  StepPlan first = s.checked_plan();
  TW_CHECK_EQ(first.tokens, 20);  // nobody decodes yet
  s.scheduler.rollback(first);
  s.step();
  for (int64_t id = 2; id <= 4; ++id) s.scheduler.add(make(id, 12, 9));
  for (int i = 0; i < 3; ++i) {
    StepPlan plan = s.checked_plan();
    TW_CHECK(plan.tokens <= 1 + 5 && plan.chunks.size() == 2);
    s.scheduler.rollback(plan);
    s.step();
  }
  TW_CHECK_EQ(s.scheduler.running(), 2);
  s.run();
}

// Long prompts arrive beside short ones, and steps take what a processor of 16 cores takes: 5 ms, 0.25 ms for
// each token, more the longer the sequences are, and up to a tenth more or less.
TW_TEST(the_time_between_tokens_keeps_its_goal_at_nearly_all_of_the_throughput) {
  struct Run {
    double p99, seconds;
    int64_t over;
  };
  const auto run = [](double goal) {
    ModelFacts facts;
    facts.max_seq_len = 8192;
    facts.block_size = 16;
    facts.block_bytes = {100};
    facts.group_windows = {0};
    EngineOptions options;
    options.kv_cache_bytes = 100 * 8000;
    options.max_batch_size = 32;
    options.max_num_tokens = 512;
    options.max_queue = 1000;
    options.itl_goal_s = goal;
    StepPrices prices{{1, 512}, {0.00525, 0.133}, 2e-8, 1e-7};
    prices.spread = {0.9, 0.95, 1.0, 1.05, 1.1};
    std::vector<int64_t> arrivals;
    std::vector<int32_t> prompts, outputs, prefixes, common, conversations;
    for (int i = 0; i < 400; ++i) {
      arrivals.push_back(int64_t{i} * 100'000'000);
      prompts.push_back(i % 5 == 0 ? 3000 : 60);
      outputs.push_back(i % 5 == 0 ? 40 : 100);
      prefixes.push_back(i), common.push_back(0), conversations.push_back(i);
    }
    Fleet fleet(facts, options, prices, {});
    fleet.run({arrivals, prompts, outputs, prefixes, common, conversations},
              {[](size_t) { return 0; }, [](size_t) {}});
    const GapCounts& gaps = fleet.gaps();
    int64_t rest = gaps.count() / 100;
    double p99 = 0;
    for (size_t bin = GapCounts::kBins; bin-- > 0 && rest >= 0;) {
      rest -= gaps.counts()[bin];
      p99 = GapCounts::seconds_of(bin);
    }
    const auto last = std::ranges::max(fleet.outcomes().ended);
    return Run{p99, static_cast<double>(last) * 1e-9, fleet.replicas()[0].stats().steps_over_goal};
  };
  const Run free = run(0), paced = run(0.05);
  std::printf("P99 of the gaps %.1f ms, %.1f s; with the goal of 50 ms %.1f ms, %.1f s\n", free.p99 * 1e3,
              free.seconds, paced.p99 * 1e3, paced.seconds);
  TW_CHECK(free.p99 > 0.1);
  TW_CHECK(paced.p99 <= 0.05);
  TW_CHECK(free.seconds >= 0.9 * paced.seconds);
  TW_CHECK(paced.over > 0 && free.over == 0);
}

TW_TEST(fewer_run_where_decodes_alone_are_over_the_goal_and_more_again_where_they_are_not) {
  StepPace pace(0.1, 512);
  for (int i = 0; i < 200; ++i) {
    const int32_t places = pace.pace().places;
    const int32_t running = places > 0 ? std::min(places, 32) : 32;
    pace.observe({running, 0, 0.01 * running});
  }
  TW_CHECK(pace.pace().places >= 5 && pace.pace().places <= 10);
  for (int i = 0; i < 400; ++i) {
    const int32_t running = std::min(pace.pace().places, 32);
    pace.observe({running, 0, 0.001 * running});
  }
  TW_CHECK(pace.pace().places > 30);
}

TW_TEST(a_deadline_that_cannot_be_met_ends_its_request_before_it_passes) {
  const Clock::HeldHere held;
  FakeBehaviour behaviour;
  EngineCore core(fake(behaviour), options(64, 1, 8));
  std::vector<Event> events;
  Request slow = request(1, {1, 2, 3}, 50), late = request(2, {4, 5}, 9), fine = request(3, {6}, 2);
  late.sampling.deadline_s = 20;
  late.sampling.min_tokens = 9;
  fine.sampling.deadline_s = 1000;
  for (Request* r : {&slow, &late, &fine}) core.add(*r, at(0));
  TW_CHECK(core.next_deadline() == at(20));
  double now = 0;
  const auto step = [&] {
    events.clear();
    core.expire(at(now), &events);
    // A fake step takes no time on a held clock, so the time comes with the executor's call.
    core.step(&events);
    now += 1;
    Clock::HeldHere::set(at(now));
  };
  while (now < 19) {
    step();
    for (const Event& event : events) TW_CHECK(event.request_id != 2);
  }
  now = 20;
  step();
  TW_CHECK(std::ranges::any_of(events, [](const Event& event) {
    return event.request_id == 2 && event.finish == "error" && event.error_type == "DeadlineError";
  }));
  TW_CHECK_EQ(core.stats().late, 1);
  TW_CHECK_EQ(core.open(), size_t{2});
}

TW_TEST(the_fastest_steps_say_what_a_request_takes_at_least) {
  FastestSteps fastest;
  TW_CHECK_EQ(fastest.least(100, 100), 0.0);  // nothing is known
  fastest.observe(10, 2.0);
  TW_CHECK_EQ(fastest.least(20, 3), 20 * 0.2 + 3 * 2.0);
  fastest.observe(1, 1.0);
  TW_CHECK_EQ(fastest.least(1, 9), 10.0);
}

TW_TEST_MAIN()
