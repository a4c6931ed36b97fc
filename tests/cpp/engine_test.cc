// The engine's thread: submissions, aborts and shutdowns from anywhere at any moment, and what everybody is
// told.
#include "runtime/core/engine/engine.h"

#include <cmath>
#include <semaphore>
#include <thread>

#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

Outcomes wait_for(Engine& engine, size_t finished) {
  Outcomes outcomes;
  auto ended = [&] {
    return static_cast<size_t>(
        std::ranges::count_if(outcomes, [](auto& o) { return !o.second.last.finish.empty(); }));
  };
  auto deadline = Clock::now() + kPatience;
  while (ended() < finished && Clock::now() < deadline) collect(engine.wait_events(0.5), &outcomes);
  TW_CHECK_EQ(ended(), finished);
  return outcomes;
}

}  // namespace

TW_TEST(what_can_never_run_is_refused_at_the_door) {
  Engine engine(fake(), options(10, 2, 8));
  TW_CHECK_ERROR(engine.submit(request(1, {}, 4)), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(request(1, {kVocab}, 4)), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(request(1, {-1}, 4)), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(request(1, {1}, 0)), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(request(1, {1}, kMaxSeqLen)), "PromptTooLongError");
  TW_CHECK_ERROR(engine.submit(request(1, {1}, 41)), "PromptTooLongError");  // ten blocks of four
  auto with = [](auto change) {
    Request r = request(1, {1}, 4);
    change(r.sampling);
    return r;
  };
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.temperature = -1; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.temperature = std::nan(""); })),
                 "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.temperature = 1e-30; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.top_k = -2; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.top_p = 0; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.top_p = std::nan(""); })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.logprobs = kVocab + 1; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.stop_token_ids = {kVocab}; })),
                 "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.min_p = 1.5; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.min_tokens = 5; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.repetition_penalty = 0; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.presence_penalty = std::nan(""); })),
                 "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.logit_bias = {{kVocab, 1.0}}; })),
                 "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.logit_bias = {{0, 1e7}}; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.bad_words = {{}}; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.bad_words = {{1, -1}}; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.n = 0; })), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(with([](Sampling& s) { s.n = 3; })), "InvalidRequestError");  // two at once
  auto twice = [](size_t prompt, int32_t max_tokens) {
    Request r = request(2, std::vector<int32_t>(prompt, 1), max_tokens);
    r.sampling.n = 2;
    return r;
  };
  TW_CHECK_ERROR(engine.submit(twice(1, 21)), "PromptTooLongError");   // six blocks each
  TW_CHECK_ERROR(engine.submit(twice(20, 10)), "PromptTooLongError");  // five shared, three each
  engine.submit(twice(20, 9));                                         // two each
  TW_CHECK_EQ(wait_for(engine, 2).size(), 2u);
  engine.submit(request(1, {1}, 40));  // the last token needs no slot
  Outcomes outcomes = wait_for(engine, 1);
  TW_CHECK_EQ(outcomes[1].tokens.size(), 40u);
}

TW_TEST(time_is_up_for_the_running_and_the_waiting) {
  FakeBehaviour slow;
  slow.sleep_us = 2000;
  Engine engine(fake(slow), options(60, 1, 16));
  auto timed = [](int64_t id, double timeout_s) {
    Request r = request(id, {1}, 100);
    r.sampling.timeout_s = timeout_s;
    return r;
  };
  engine.submit(timed(1, 0.05));
  engine.submit(timed(2, 0));
  engine.submit(timed(3, 1e7));
  engine.submit(request(4, {1}, 2));
  Outcomes outcomes = wait_for(engine, 4);
  TW_CHECK_EQ(outcomes[1].last.finish, "timeout");
  TW_CHECK(outcomes[1].tokens.size() < 100);
  TW_CHECK_EQ(outcomes[2].last.finish, "timeout");
  TW_CHECK(outcomes[2].tokens.empty());
  TW_CHECK_EQ(outcomes[3].last.finish, "length");
  TW_CHECK_EQ(outcomes[4].last.finish, "length");
  TW_CHECK_EQ(engine.stats().timed_out, 2);
  TW_CHECK_EQ(engine.stats().used_blocks, 0);
  TW_CHECK_ERROR(engine.submit(timed(5, std::nan(""))), "InvalidRequestError");
  TW_CHECK_ERROR(engine.submit(timed(5, 1e300)), "InvalidRequestError");
}

TW_TEST(the_queue_is_bounded_and_ids_are_unique) {
  std::counting_semaphore<> steps(10);  // the first request does not end before it may
  FakeBehaviour held;
  held.steps = &steps;
  EngineOptions o = options(60, 1, 16);
  o.max_queue = 3;
  Engine engine(fake(held), o);
  const ReleasedAtTheEnd released{steps};
  engine.submit(request(1, {1}, 50));
  TW_CHECK_ERROR(engine.submit(request(1, {1}, 50)), "InvalidRequestError");
  while (engine.stats().running == 0) engine.wait_events(0.01);
  for (int64_t id = 2; id <= 4; ++id) engine.submit(request(id, {1}, 2));
  TW_CHECK_ERROR(engine.submit(request(5, {1}, 2)), "QueueFullError");
  TW_CHECK_EQ(engine.stats().waiting, 3);
  steps.release(1000);
  wait_for(engine, 4);
  engine.submit(request(1, {1}, 2));  // the id is free again
  wait_for(engine, 1);
}

TW_TEST(the_queue_takes_a_burst_exactly_whatever_the_loop_is_at) {
  EngineOptions o = options(60, 3, 16);
  o.max_queue = 2;
  for (int delay_ms : {0, 5, 30}) {
    std::counting_semaphore<> steps(20);  // no request ends in so few
    FakeBehaviour slow;
    slow.sleep_us = 20000;
    slow.steps = &steps;
    Engine engine(fake(slow), o);
    const ReleasedAtTheEnd released{steps};
    for (int64_t id = 1; id <= 5; ++id) {
      engine.submit(request(id, {1}, 100));  // three to run, two to wait
      if (id == 1) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    }
    TW_CHECK_ERROR(engine.submit(request(6, {1}, 2)), "QueueFullError");
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    TW_CHECK_ERROR(engine.submit(request(6, {1}, 2)), "QueueFullError");
    TW_CHECK_EQ(engine.stats().running + engine.stats().waiting, 5);
  }
}

TW_TEST(metrics_and_prefix_hits_are_told) {
  Engine engine(fake(), options(60, 4, 64));
  engine.submit(request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 3));
  Event first = wait_for(engine, 1)[1].last;
  engine.submit(request(2, {1, 2, 3, 4, 5, 6, 7, 8, 10}, 3));
  Event second = wait_for(engine, 1)[2].last;
  TW_CHECK_EQ(first.cached_tokens, 0);
  TW_CHECK_EQ(second.cached_tokens, 8);
  TW_CHECK_EQ(second.prompt_tokens, 9);
  TW_CHECK(first.queue_s >= 0 && first.queue_s <= first.first_token_s && first.first_token_s < 60);
  EngineStats stats = engine.stats();
  TW_CHECK_EQ(stats.steps.prefill_tokens, 10);
  TW_CHECK_EQ(stats.steps.decode_tokens, 4);
  TW_CHECK_EQ(stats.steps.prefix_hit_tokens, 8);
  TW_CHECK_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks);
}

// Submitted from several threads, a third of them aborted at some moment: the others' tokens are those of a
// solo run, the aborted ones' a beginning of it.
TW_TEST(three_hundred_requests_with_aborts) {
  std::mt19937 random(12);
  std::vector<Request> requests;
  for (int64_t id = 0; id < 300; ++id)
    requests.push_back(random_request(random, id, 1 + static_cast<int32_t>(random() % 3), 40));
  EngineOptions o = options(40, 8, 40);
  o.debug_preempt_every = 5;
  o.max_chunk = 16;
  o.max_queue = 300;
  FakeBehaviour slow;
  slow.sleep_us = 20;
  Engine engine(fake(slow), o);
  std::vector<std::thread> threads;
  for (int part = 0; part < 3; ++part) {
    threads.emplace_back([&, part] {
      std::mt19937 own(part);
      for (int64_t id = part; id < 300; id += 3) {
        engine.submit(requests[id]);
        if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
        if (own() % 3 == 0) engine.abort(static_cast<int64_t>(own() % (id + 1)));
        if (own() % 3 == 0) engine.abort(id, static_cast<int32_t>(own() % 3));
        engine.stats();
      }
    });
  }
  size_t completions = 0;
  for (const Request& r : requests) completions += static_cast<size_t>(r.sampling.n);
  TW_CHECK(completions > 400);
  Outcomes outcomes = wait_for(engine, completions);
  for (std::thread& thread : threads) thread.join();
  int aborted = 0;
  for (const Request& r : requests) {
    int32_t left = r.sampling.n;
    for (int32_t completion = 0; completion < r.sampling.n; ++completion) {
      Outcome alone = solo_completion(r, completion);
      Outcome& crowd = outcomes[r.id + kNext * completion];
      if (crowd.last.finish == "abort") {
        --left;
        TW_CHECK(crowd.tokens.size() <= alone.tokens.size());
        alone.tokens.resize(crowd.tokens.size());
        TW_CHECK(crowd.tokens == alone.tokens);
      } else {
        TW_CHECK(same(crowd, alone));
      }
    }
    aborted += left == 0;
  }
  TW_CHECK(aborted > 5 && aborted < 150);
  EngineStats stats = engine.stats();
  TW_CHECK_EQ(stats.used_blocks, 0);
  TW_CHECK_EQ(stats.waste_slots, 0);
  TW_CHECK(stats.aborted >= aborted);  // also those whose last completion was aborted
  TW_CHECK_EQ(stats.finished + stats.aborted, 300);
  TW_CHECK(!engine.abort(0));
}

TW_TEST(news_pile_up_in_order_when_nobody_fetches) {
  Engine engine(fake(), options(60, 4, 64));
  engine.submit(request(1, {1, 2, 3}, 30));
  while (engine.stats().finished == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<Event> events = engine.wait_events(1);
  TW_CHECK_EQ(events.size(), 1u);
  TW_CHECK(events[0].tokens == solo(request(1, {1, 2, 3}, 30)).tokens);
  for (int64_t done = 1; done <= 2; ++done) {  // the same id twice: two ends, never merged
    engine.submit(request(7, {1, 2, 3}, 4));
    while (engine.stats().finished == done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  events = engine.wait_events(1);
  TW_CHECK_EQ(events.size(), 2u);
  for (const Event& event : events) TW_CHECK(event.finish == "length" && event.tokens.size() == 4);
  TW_CHECK(engine.wait_events(0).empty());
  TW_CHECK(engine.wait_events(-1).empty());
  TW_CHECK(engine.wait_events(std::nan("")).empty());
}

TW_TEST(shutdown_drains_or_aborts) {
  FakeBehaviour slow;
  slow.sleep_us = 1000;
  for (bool drain : {true, false}) {
    Engine engine(fake(slow), options(60, 2, 16));
    for (int64_t id = 0; id < 4; ++id) engine.submit(request(id, {1, 2}, 20));
    engine.shutdown(drain, -1);
    engine.shutdown(drain, -1);  // again: nothing left to do
    TW_CHECK(engine.stopped());
    TW_CHECK_ERROR(engine.submit(request(9, {1}, 1)), "EngineStoppedError");
    Outcomes outcomes = wait_for(engine, 4);
    for (auto& [id, outcome] : outcomes) TW_CHECK(outcome.last.finish == (drain ? "length" : "abort"));
    TW_CHECK_EQ(engine.stats().used_blocks, 0);
    TW_CHECK(engine.wait_events(10).empty());  // at once
  }
  slow.sleep_us = 50000;
  Engine engine(fake(slow), options(60, 2, 16));
  engine.submit(request(1, {1, 2}, 100));
  engine.shutdown(true, 0.01);  // not enough time, by far
  TW_CHECK(wait_for(engine, 1)[1].last.finish == "abort");
}

TW_TEST(the_destructor_is_safe_at_any_moment) {
  std::mt19937 random(13);
  FakeBehaviour slow;
  slow.sleep_us = 100;
  for (int round = 0; round < 30; ++round) {
    Engine engine(fake(slow), options(40, 4, 16));
    for (int64_t id = 0; id < static_cast<int64_t>(random() % 5); ++id)
      engine.submit(random_request(random, id));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
  }
}

TW_TEST(when_the_loop_dies_everybody_hears_of_it) {
  FakeBehaviour deadly;
  deadly.die_token = 49;
  deadly.sleep_us = 500;
  Engine engine(fake(deadly), options(60, 2, 16));
  for (int64_t id = 0; id < 3; ++id) engine.submit(request(id, {1, 2}, 80));
  engine.wait_events(1);
  engine.submit(request(3, {49}, 2));
  Outcomes outcomes = wait_for(engine, 4);
  for (auto& [id, outcome] : outcomes) {
    TW_CHECK(outcome.last.finish == "length" || outcome.last.error_type == "EngineStoppedError");
  }
  TW_CHECK(outcomes[3].last.error_type == "EngineStoppedError");
  TW_CHECK(engine.stopped());
  TW_CHECK_ERROR(engine.submit(request(9, {1}, 1)), "EngineStoppedError");
  TW_CHECK(!engine.abort(0));
}

// It stops rather than go on with a bug of its own, says which, and shows it in its stats.
TW_TEST(a_broken_invariant_stops_the_engine) {
  EngineOptions o = options(60, 2, 16);
  o.debug_lose_block = 5;
  Engine engine(fake(), o);
  TW_CHECK(engine.cause().empty());
  // One request: the engine may have stopped before a second one comes.
  engine.submit(request(0, {1, 2}, 80));
  for (auto& [id, outcome] : wait_for(engine, 1)) {
    TW_CHECK(outcome.last.error_type == "EngineStoppedError");
    TW_CHECK(outcome.last.error.find("broken invariant") != std::string::npos);
  }
  TW_CHECK(engine.stopped());
  TW_CHECK(engine.cause().find("references to blocks") != std::string::npos);
  TW_CHECK_EQ(engine.stats().invariant_violations, 1);
}

TW_TEST_MAIN()
