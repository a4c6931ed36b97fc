// The scheduler under load: the fairness bound of scheduler.h, and that nothing leaks whatever happens.
#include <random>
#include <stdexcept>

#include "tests/cpp/scheduler_simulation.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// The bound that scheduler.h states.
int64_t bound(const SchedulerLimits& limits, int64_t prompt, int64_t max_tokens, bool scoring = false,
              bool snapshots = false) {
  int64_t c = limits.max_tokens - limits.max_seqs + 1;
  if (limits.max_chunk) c = std::min<int64_t>(c, limits.max_chunk);
  if (scoring) c = std::min<int64_t>(c, limits.max_prompt_rows);
  return (prompt + max_tokens + c - 1) / c + max_tokens + 2 * snapshots;
}

}  // namespace

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
// bound. In every third crowd next tokens come late: their sequences sit out, and all are later by that, and
// by what those compute again that were preempted meanwhile.
TW_TEST(random_crowds_keep_the_fairness_bound_and_leak_nothing) {
  std::mt19937 random(5);
  int64_t preemptions = 0, max_chunks = 0, forked = 0, copies = 0, sat_out = 0, hits = 0, evicted = 0;
  for (int round = 0; round < 60; ++round) {
    int32_t max_seqs = 1 + static_cast<int32_t>(random() % 6);
    SchedulerLimits limits{max_seqs, max_seqs + static_cast<int32_t>(random() % 12),
                           static_cast<int32_t>(random() % 3 * 3)};
    limits.max_prompt_rows = 1 + static_cast<int32_t>(random() % 4);
    int32_t block_size = 1 + static_cast<int32_t>(random() % 4),
            blocks = 12 + static_cast<int32_t>(random() % 20);
    const bool prefix_cache = random() % 2;
    const auto window = static_cast<int32_t>(random() % 12);
    const StateShape states{round % 2 ? 0 : max_seqs, round % 5 * 3};
    Simulation s(blocks, block_size, limits, prefix_cache, window, states, round % 3 == 1);
    s.late_every = round % 3 == 2 ? 4 : 0;
    std::map<int64_t, int64_t> must_start, must_finish, need;
    for (int64_t id = 1; id <= 40; ++id) {
      int32_t room = blocks * block_size;
      int32_t prompt = 1 + static_cast<int32_t>(random() % (room * 2 / 3));
      int32_t most = 1 + static_cast<int32_t>(random() % (room + 1 - prompt));
      int32_t n = 1 + static_cast<int32_t>(random() % max_seqs);
      if (!fits(blocks, block_size, prompt, most, n)) n = 1;
      bool scoring = random() % 3 == 0;
      need[id] = n * bound(limits, prompt, most, scoring, s.kv.keeps_snapshots());
      if (s.late_every > 0) need[id] *= 1 + s.kLate, need[id] += n * s.kLate * s.kLateSteps;
      int64_t ahead = 0;
      for (int64_t other = 1; other < id; ++other) ahead += s.finished.count(other) ? 0 : need[other];
      must_start[id] = s.now + ahead + 1;
      must_finish[id] = s.now + ahead + need[id];
      auto sequence = make(id, prompt, most, static_cast<int32_t>(random() % 2) * 1000, 0, n);
      if (scoring) change_sampling(*sequence, [](Sampling& sampling) { sampling.prompt_logprobs = 0; });
      s.scheduler.add(std::move(sequence));
      for (uint32_t i = random() % 8; i > 0 && !s.scheduler.idle(); --i) s.step();
    }
    s.run();
    for (auto [id, most] : must_start) TW_CHECK(s.started[id] <= most);
    for (auto [id, most] : must_finish) TW_CHECK(s.finished[id] <= most);
    preemptions += s.scheduler.stats().preemptions;
    max_chunks = std::max(max_chunks, s.max_chunks);
    forked += s.forked;
    copies += s.copies;
    sat_out += s.sat_out;
    hits += s.scheduler.stats().snapshot_hits;
    evicted += s.kv.snapshot_stats().evicted;
  }
  TW_CHECK(preemptions > 100);
  TW_CHECK(max_chunks > 4);
  TW_CHECK(forked > 500);
  TW_CHECK(copies > 200);
  TW_CHECK(sat_out > 500);
  TW_CHECK(hits > 100 && evicted > 100);
}

// The same with priorities: what comes later delays only what has a lower one.
TW_TEST(random_priorities_keep_the_bound_and_leak_nothing) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    SchedulerLimits limits{1 + static_cast<int32_t>(random() % 5), 8, 0};
    int32_t blocks = 12 + static_cast<int32_t>(random() % 20);
    Simulation s(blocks, 2, limits, random() % 2, static_cast<int32_t>(random() % 12));
    std::map<int64_t, int64_t> must_start, need;
    std::map<int64_t, int32_t> priority;
    for (int64_t id = 1; id <= 40; ++id) {
      int32_t prompt = 1 + static_cast<int32_t>(random() % blocks);
      int32_t most = 1 + static_cast<int32_t>(random() % blocks);
      int32_t n = 1 + static_cast<int32_t>(random() % limits.max_seqs);
      if (!fits(blocks, 2, prompt, most, n)) n = 1;
      need[id] = n * bound(limits, prompt, most);
      priority[id] = static_cast<int32_t>(random() % 3);
      must_start[id] = s.now + 1;
      for (int64_t other = 1; other < id; ++other) {
        if (s.finished.count(other)) continue;
        if (s.started.count(other) || priority[other] >= priority[id]) must_start[id] += need[other];
        if (!s.started.count(other) && priority[other] < priority[id]) must_start[other] += need[id];
      }
      s.scheduler.add(make(id, prompt, most, static_cast<int32_t>(random() % 2) * 1000, priority[id], n));
      for (uint32_t i = random() % 8; i > 0 && !s.scheduler.idle(); --i) s.step();
    }
    s.run();
    for (auto [id, most] : must_start) TW_CHECK(s.started[id] <= most);
  }
}

// Rollbacks, removals and forced preemptions at random: the scheduler comes to an end and every block comes
// back.
TW_TEST(random_trouble_leaks_nothing) {
  std::mt19937 random(6);
  for (int round = 0; round < 40; ++round) {
    SchedulerLimits limits{4, 12, 0, 1 + static_cast<int32_t>(random() % 3), random()};
    limits.chunk_multiple = round % 3 == 2 ? 3 : 0;
    limits.max_prompt_rows = 3;
    const bool prefix_cache = random() % 2;
    const auto window = static_cast<int32_t>(random() % 12);
    Simulation s(14, 3, limits, prefix_cache, window, StateShape{round % 2 ? 4 : 0, round % 8},
                 round % 3 == 1);
    for (int64_t id = 1; id <= 30; ++id) {
      int32_t prompt = 1 + static_cast<int32_t>(random() % 25);
      int32_t most = 1 + static_cast<int32_t>(random() % (42 - prompt)),
              n = 1 + static_cast<int32_t>(random() % 4);
      if (!fits(14, 3, prompt, most, n)) n = 1;
      s.scheduler.add(make(id, prompt, most, 0, static_cast<int32_t>(random() % 2), n));
      if (random() % 4 == 0)
        s.scheduler.remove(1 + static_cast<int64_t>(random() % id), static_cast<int32_t>(random() % n));
      if (random() % 2) {
        StepPlan plan = s.checked_plan();
        if (random() % 2) {
          s.fail(plan);
        } else {
          s.scheduler.rollback(plan);
        }
      }
      if (!s.scheduler.idle()) s.step();
    }
    s.run();
    TW_CHECK(s.scheduler.stats().preemptions > 0);
  }
}

// A copy that fails takes the whole plan back: nothing is lost, and the next plan is as if nothing had been.
TW_TEST(a_copy_that_fails_leaks_nothing) {
  std::mt19937 random(8);
  int64_t failures = 0, lost = 0;
  for (int round = 0; round < 40; ++round) {
    const bool prefix_cache = random() % 2;
    Simulation s(14, 3, {4, 12, 0}, prefix_cache, 0, StateShape{round % 2 ? 4 : 0, round % 8});
    s.kv.on_copy([&](int32_t, int32_t, int32_t) {
      if (random() % 2) throw std::runtime_error("no copy");
    });
    s.kv.on_copy_state([&](int32_t from, int32_t to) {
      // The engine ends a request whose fork fails, which this test does not.
      if (!s.forking && random() % 4 == 0) throw std::runtime_error("no copy");
      s.states[static_cast<size_t>(to)] = s.states[static_cast<size_t>(from)];
    });
    for (int64_t id = 1; id <= 10; ++id) {
      int32_t prompt = 1 + static_cast<int32_t>(random() % 10);
      s.scheduler.add(make(id, prompt, 4, 0, 0, 2));
    }
    for (int steps = 0; !s.scheduler.idle() && steps < 10000; ++steps) {
      try {
        s.step();
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
    s.run();
    lost += s.kv.snapshot_stats().lost;
  }
  TW_CHECK(lost > 0);
  TW_CHECK(failures > 100);
}

TW_TEST_MAIN()
