// The simulation: what steps cost, the times of requests computed by hand, conservation, and what is refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/simulation/fleet.h"
#include "tests/cpp/check.h"

using namespace tensorwright;  // NOLINT

namespace {

constexpr int64_t kMs = 1'000'000;

ModelFacts facts(std::vector<int32_t> windows = {0}) {
  ModelFacts facts;
  facts.max_seq_len = 1024;
  facts.block_size = 4;
  facts.block_bytes.assign(windows.size(), 100);
  facts.group_windows = std::move(windows);
  return facts;
}

EngineOptions options(int32_t blocks = 1000) {
  EngineOptions options;
  options.kv_cache_bytes = int64_t{100} * blocks;
  options.max_batch_size = 8;
  options.max_num_tokens = 64;
  options.max_queue = 100;
  return options;
}

// The columns of a traffic, which own what they hold.
struct Columns {
  std::vector<int64_t> arrivals = {};
  std::vector<int32_t> prompts = {}, outputs = {}, prefixes = {}, prefix_tokens = {}, conversations = {};

  void add(int64_t ms, int32_t prompt, int32_t output, int32_t prefix = 0, int32_t prefix_size = 0) {
    arrivals.push_back(ms * kMs);
    prompts.push_back(prompt), outputs.push_back(output);
    prefixes.push_back(prefix), prefix_tokens.push_back(prefix_size);
    conversations.push_back(static_cast<int32_t>(conversations.size()));
  }
  Traffic traffic() const { return {arrivals, prompts, outputs, prefixes, prefix_tokens, conversations}; }
};

// Each step takes 10 ms.
const StepPrices kTenMs{{1}, {0.010}};

FleetRouter in_turn(int32_t replicas) {
  return {[replicas](size_t request) { return static_cast<int32_t>(request) % replicas; }, [](size_t) {}};
}

std::string fault_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.type() + ": " + error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TW_TEST(the_time_of_a_step_is_the_sum_of_its_terms) {
  const CostModel costs(facts(), {{1, 4, 8}, {1.0, 4.0, 6.0}, 0.5, 0.25, 10, 100});
  TW_CHECK_EQ(costs.seconds(StepShape{1}, 0), 1.0);
  TW_CHECK_EQ(costs.seconds(StepShape{3}, 0), 3.0);   // between 1 and 4
  TW_CHECK_EQ(costs.seconds(StepShape{6}, 0), 5.0);   // between 4 and 8
  TW_CHECK_EQ(costs.seconds(StepShape{10}, 0), 7.0);  // the line goes on
  TW_CHECK_EQ(costs.seconds(StepShape{4, 2, 3, 8, 12}, 0), 4.0 + 0.5 * 8 + 0.25 * 12 + 3 * 10 + 2 * 100);
  const CostModel one(facts(), {{1}, {2.0}});
  TW_CHECK_EQ(one.seconds(StepShape{500}, 0), 2.0);
}

TW_TEST(a_drawn_number_chooses_from_the_spread) {
  StepPrices prices{{1}, {2.0}};
  prices.spread = {0.5, 1.0, 1.5};
  const CostModel costs(facts(), prices);
  TW_CHECK_EQ(costs.seconds(StepShape{1}, 0), 1.0);
  TW_CHECK_EQ(costs.seconds(StepShape{1}, 0.5), 2.0);
  TW_CHECK_EQ(costs.seconds(StepShape{1}, 0.999999), 3.0);
}

TW_TEST(attention_counts_the_positions_that_tokens_see) {
  const auto shape = [](std::vector<int32_t> windows, int32_t tokens, int32_t context) {
    Step step;
    step.token_ids.resize(static_cast<size_t>(tokens));
    step.seq_starts = {0, tokens};
    step.context_lens = {context};
    return ShapeCounter(facts(std::move(windows))).shape_of(step);
  };
  TW_CHECK_EQ(shape({0}, 3, 10).pairs, 8.0 + 9 + 10);
  TW_CHECK_EQ(shape({0}, 3, 10).reads, 10.0);
  TW_CHECK_EQ(shape({4}, 4, 5).pairs, 2.0 + 3 + 4 + 4);
  TW_CHECK_EQ(shape({4}, 3, 10).pairs, 12.0);
  TW_CHECK_EQ(shape({4}, 3, 10).reads, 6.0);
  // Two groups of the same size count half each.
  TW_CHECK_EQ(shape({0, 4}, 3, 10).pairs, (27.0 + 12.0) / 2);
}

TW_TEST(costs_that_are_not_sound_are_refused) {
  const auto fault = [](StepPrices prices) {
    return fault_of([&] { CostModel(facts(), std::move(prices)); });
  };
  TW_CHECK(has(fault({{}, {}}), "one size at least"));
  TW_CHECK(has(fault({{2, 3}, {1, 1}}), "begin at 1"));
  TW_CHECK(has(fault({{1, 3, 3}, {1, 1, 1}}), "ascend"));
  TW_CHECK(has(fault({{1, 3}, {2, 1}}), "must not fall"));
  TW_CHECK(has(fault({{1}, {0}}), "a nanosecond at least"));
  TW_CHECK(has(fault({{1}, {std::nan("")}}), "a time of the table"));
  TW_CHECK(has(fault({{1}, {1}, -1}), "pair_seconds"));
  TW_CHECK(has(fault({{1}, {1}, 0, 0, 0, 0, {0.0}}), "spread"));
  TW_CHECK_EQ(fault({{1}, {1}}), std::string());
}

TW_TEST(a_held_clock_is_held_for_its_thread_alone) {
  const Clock::HeldHere held;
  Clock::HeldHere::set(Clock::time_point(std::chrono::seconds(7)));
  TW_CHECK(Clock::now() == Clock::time_point(std::chrono::seconds(7)));
  bool runs = false;
  std::thread([&runs] { runs = Clock::now() > Clock::time_point(std::chrono::seconds(7)); }).join();
  TW_CHECK(runs);
}

// Steps begin at 0, 10, 20 and 45 ms. The second request comes while the first step is under way, and is in
// the next one. The third finds an idle replica.
TW_TEST(requests_end_when_they_do_by_hand) {
  Columns columns;
  columns.add(0, 5, 3);
  columns.add(5, 7, 2);
  columns.add(45, 5, 1);
  Fleet fleet(facts(), options(), kTenMs, {});
  fleet.run(columns.traffic(), in_turn(1));
  const Outcomes& out = fleet.outcomes();
  TW_CHECK(out.started == (std::vector<int64_t>{0, 10 * kMs, 45 * kMs}));
  TW_CHECK(out.first == (std::vector<int64_t>{10 * kMs, 20 * kMs, 55 * kMs}));
  TW_CHECK(out.ended == (std::vector<int64_t>{30 * kMs, 30 * kMs, 55 * kMs}));
  TW_CHECK(out.generated == (std::vector<int32_t>{3, 2, 1}));
  TW_CHECK(out.gaps == (std::vector<float>{0.010f, 0.010f, 0.f}));
  TW_CHECK_EQ(fleet.gaps().count(), 3);
  TW_CHECK(std::abs(fleet.gaps().sum_seconds() - 0.030) < 1e-12);
  TW_CHECK_EQ(fleet.replicas()[0].use().busy_ns, 40 * kMs);
  TW_CHECK_EQ(fleet.replicas()[0].stats().steps.steps, 4);
}

// A prompt of 70 tokens takes two steps of at most 64; the decode beside it takes one of the tokens of each.
TW_TEST(prompts_are_cut_into_chunks_by_the_scheduler) {
  Columns columns;
  columns.add(0, 1, 4);
  columns.add(1, 70, 1);
  Fleet fleet(facts(), options(), {{1}, {0.001}}, {});
  fleet.run(columns.traffic(), in_turn(1));
  // Steps end at 1, 2 (1 + 63), 3 (1 + 7) and 4 ms.
  TW_CHECK(fleet.outcomes().first == (std::vector<int64_t>{1 * kMs, 3 * kMs}));
  TW_CHECK(fleet.outcomes().ended == (std::vector<int64_t>{4 * kMs, 3 * kMs}));
}

TW_TEST(each_replica_has_a_clock_of_its_own) {
  Columns columns;
  columns.add(0, 5, 2);
  columns.add(4, 5, 2);
  Fleet fleet(facts(), options(), kTenMs, {2});
  fleet.run(columns.traffic(), in_turn(2));
  TW_CHECK(fleet.outcomes().ended == (std::vector<int64_t>{20 * kMs, 24 * kMs}));
  TW_CHECK(fleet.outcomes().replicas == (std::vector<int32_t>{0, 1}));
}

TW_TEST(a_common_beginning_is_computed_once) {
  Columns columns;
  columns.add(0, 20, 1, 3, 16);
  columns.add(100, 20, 1, 3, 16);
  columns.add(200, 20, 1, 4, 16);
  Fleet fleet(facts(), options(), kTenMs, {});
  fleet.run(columns.traffic(), in_turn(1));
  TW_CHECK(fleet.outcomes().cached == (std::vector<int32_t>{0, 16, 0}));
}

TW_TEST(a_full_queue_refuses_and_the_router_hears_of_it) {
  EngineOptions small = options();
  small.max_batch_size = 1;
  small.max_queue = 1;
  Columns columns;
  for (int i = 0; i < 4; ++i) columns.add(0, 4, 2);
  std::vector<size_t> finished;
  Fleet fleet(facts(), small, kTenMs, {});
  fleet.run(columns.traffic(), {[](size_t) { return 0; }, [&](size_t i) { finished.push_back(i); }});
  TW_CHECK(fleet.outcomes().replicas == (std::vector<int32_t>{0, 0, -1, -1}));
  TW_CHECK(fleet.outcomes().ended == (std::vector<int64_t>{20 * kMs, 40 * kMs, -1, -1}));
  TW_CHECK(finished == (std::vector<size_t>{2, 3, 0, 1}));
  TW_CHECK_EQ(fleet.replicas()[0].use().refused, 2);
}

// The cache is too small for a full batch, so that sequences are preempted. Nothing is lost, and a second run
// is the same.
TW_TEST(everything_ends_and_every_run_is_the_same) {
  Columns columns;
  for (int i = 0; i < 200; ++i) columns.add(i * 7 % 50 + i * 10, 1 + i * 37 % 90, 1 + i * 11 % 40, i % 5, 0);
  std::ranges::sort(columns.arrivals);
  StepPrices prices{{1, 64}, {0.002, 0.008}, 1e-6};
  prices.spread = {0.5, 1.5};
  std::vector<int64_t> before;
  for (int run = 0; run < 2; ++run) {
    Fleet fleet(facts(), options(40), prices, {3});
    fleet.run(columns.traffic(), in_turn(3));
    const Outcomes& out = fleet.outcomes();
    int64_t preemptions = 0, finished = 0, gaps = 0;
    for (size_t i = 0; i < columns.arrivals.size(); ++i) {
      TW_CHECK_EQ(out.generated[i], columns.outputs[i]);
      TW_CHECK(columns.arrivals[i] <= out.started[i] && out.started[i] < out.first[i] &&
               out.first[i] <= out.ended[i]);
      gaps += columns.outputs[i] - 1;
    }
    for (const Replica& replica : fleet.replicas()) {
      preemptions += replica.stats().steps.preemptions;
      finished += replica.stats().finished;
      TW_CHECK_EQ(replica.stats().used_blocks, 0);
    }
    TW_CHECK(preemptions > 0);
    TW_CHECK_EQ(finished, int64_t{200});
    TW_CHECK_EQ(fleet.gaps().count(), gaps);
    if (run > 0) TW_CHECK(out.ended == before);
    before = out.ended;
  }
}

TW_TEST(gaps_are_counted_in_narrow_bins) {
  GapCounts gaps;
  for (const int64_t ns : {int64_t{0}, int64_t{1}, int64_t{1'000'000}, int64_t{INT64_MAX}}) gaps.add(ns);
  TW_CHECK_EQ(gaps.count(), 4);
  TW_CHECK_EQ(gaps.counts().front(), 2);
  TW_CHECK_EQ(gaps.counts().back(), 1);
  const auto bin = std::find(gaps.counts().begin() + 1, gaps.counts().end(), 1) - gaps.counts().begin();
  TW_CHECK(std::abs(GapCounts::seconds_of(static_cast<size_t>(bin)) / 1e-3 - 1) < 0.0026);
}

TW_TEST(traffic_that_is_not_sound_is_refused) {
  const auto fault = [](const std::function<void(Columns*)>& spoil, int32_t chosen = 0) {
    Columns columns;
    columns.add(0, 5, 3);
    columns.add(1, 5, 3, 0, 4);
    spoil(&columns);
    return fault_of([&] {
      Fleet(facts(), options(), kTenMs, {})
          .run(columns.traffic(), {[chosen](size_t) { return chosen; }, [](size_t) {}});
    });
  };
  TW_CHECK_EQ(fault([](Columns*) {}), std::string());
  TW_CHECK(has(fault([](Columns* c) { *c = {}; }), "1 to 4194304 requests, got 0"));
  TW_CHECK(has(fault([](Columns* c) { c->outputs.pop_back(); }), "2 entries, one has 1"));
  TW_CHECK(has(fault([](Columns* c) { c->arrivals[0] = 2 * kMs; }), "request 1 must have a time"));
  TW_CHECK(has(fault([](Columns* c) { c->arrivals[0] = -1; }), "request 0 must have a time"));
  TW_CHECK(has(fault([](Columns* c) { c->prompts[1] = 0; }), "a prompt of at least one token"));
  TW_CHECK(has(fault([](Columns* c) { c->outputs[0] = 0; }), "an output of at least one token"));
  TW_CHECK(has(fault([](Columns* c) { c->prefix_tokens[1] = 5; }), "shorter than its prompt"));
  TW_CHECK(has(fault([](Columns* c) { c->prefixes[1] = -1; }), "its common beginning that is not negative"));
  TW_CHECK(has(fault([](Columns* c) { c->conversations[1] = -1; }), "its conversation that is not negative"));
  TW_CHECK(has(fault([](Columns* c) { c->prompts[0] = 1023; }), "PromptTooLongError"));
  TW_CHECK(has(fault([](Columns*) {}, 1), "one of 1 replicas, got 1"));
}

TW_TEST(fleets_that_are_not_sound_are_refused) {
  const auto fault = [](FleetOptions fleet, int32_t blocks = 1000) {
    return fault_of([&] { Fleet(facts(), options(blocks), kTenMs, fleet); });
  };
  TW_CHECK(has(fault({0}), "1 to 1000 replicas, got 0"));
  TW_CHECK(has(fault({1001}), "got 1001"));
  TW_CHECK(has(fault({1, 0}), "percentile"));
  TW_CHECK(has(fault({1000}, 1'000'000), "KV blocks"));
}

TW_TEST_MAIN()
