// Steps that fail and an engine that stops, while several threads submit, abort and look on.
#include <atomic>
#include <thread>

#include "runtime/core/engine/engine.h"
#include "tests/cpp/engine_cases.h"

using namespace tw_test;

namespace {

constexpr int32_t kThrow = 45, kLate = 46, kNan = 47;  // in no prompt of random_request

FakeBehaviour faulty() {
  FakeBehaviour f;
  f.throw_token = kThrow;
  f.late_token = kLate;
  f.nan_token = kNan;
  f.fail_every = 7;  // in company only: nobody is at fault
  f.sleep_us = 20;
  return f;
}

// Whether a poisoned token is computed: of the prompt, or sampled and fed back.
bool must_fail(const Request& r, const Outcome& alone) {
  std::vector<int32_t> fed = r.prompt;
  fed.insert(fed.end(), alone.tokens.begin(), alone.tokens.end() - 1);
  return std::ranges::any_of(fed, [](int32_t t) { return t >= kThrow && t <= kNan; });
}

}  // namespace

TW_TEST(failing_steps_end_the_guilty_and_nobody_else) {
  constexpr int64_t kRequests = 200;
  std::mt19937 random(5);
  std::vector<Request> requests;
  for (int64_t id = 0; id < kRequests; ++id) {
    requests.push_back(random_request(random, id));
    if (id % 5 == 0) requests.back().prompt.back() = kThrow + static_cast<int32_t>(id / 5 % 3);
  }
  EngineOptions o = options(60, 8, 40);
  o.debug_preempt_every = 9;
  o.max_queue = kRequests;
  Engine engine(fake(faulty()), o);
  std::vector<std::thread> threads;
  for (int part = 0; part < 3; ++part) {
    threads.emplace_back([&, part] {
      for (int64_t id = part; id < kRequests; id += 3) {
        engine.submit(requests[id]);
        engine.stats();
      }
    });
  }
  Outcomes outcomes;
  auto ended = [&] {
    return std::ranges::count_if(outcomes, [](auto& o) { return !o.second.last.finish.empty(); });
  };
  while (ended() < kRequests) collect(engine.wait_events(1), &outcomes);
  for (std::thread& thread : threads) thread.join();
  int failed = 0;
  for (const Request& r : requests) {
    const Outcome alone = solo(r);
    const Outcome& crowd = outcomes[r.id];
    failed += crowd.last.finish == "error";
    TW_CHECK_EQ(crowd.last.finish == "error", must_fail(r, alone));
    if (crowd.last.finish != "error") TW_CHECK(same(crowd, alone));
  }
  TW_CHECK(failed >= 40 && failed < kRequests);
  EngineStats stats = engine.stats();
  TW_CHECK_EQ(stats.failed, failed);
  TW_CHECK(stats.steps.rolled_back > failed / 2);
  TW_CHECK_EQ(stats.used_blocks, 0);
}

TW_TEST(shutdown_in_the_middle_of_faults_and_submits) {
  for (int round = 0; round < 12; ++round) {
    Engine engine(fake(faulty()), options(60, 4, 40));
    std::atomic<int64_t> taken{0};
    std::vector<std::thread> threads;
    for (int part = 0; part < 3; ++part) {
      threads.emplace_back([&, part] {
        std::mt19937 random(round * 3 + part);
        for (int64_t id = part; id < 3000; id += 3) {
          Request r = random_request(random, id);
          if (random() % 4 == 0) r.prompt.back() = kThrow;
          try {
            engine.submit(std::move(r));
            ++taken;
            if (random() % 3 == 0) engine.abort(id);
          } catch (const Error& error) {
            TW_CHECK(error.type() == "EngineStoppedError" || error.type() == "QueueFullError");
            if (error.type() == "EngineStoppedError") return;
          }
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    std::thread other([&] { engine.shutdown(round % 2, 0.01); });
    engine.shutdown(round % 3 == 0, 0.02);
    other.join();
    for (std::thread& thread : threads) thread.join();
    Outcomes outcomes;
    for (auto events = engine.wait_events(0); !events.empty(); events = engine.wait_events(0))
      collect(std::move(events), &outcomes);  // nothing comes after an end
    TW_CHECK(engine.stopped());
    TW_CHECK_EQ(static_cast<int64_t>(outcomes.size()), taken.load());
    for (auto& [id, outcome] : outcomes) TW_CHECK(!outcome.last.finish.empty());
    TW_CHECK_EQ(engine.stats().running + engine.stats().waiting, 0);
  }
}

TW_TEST_MAIN()
