// Guided requests in the served engine: masks from another thread, and whatever may happen while the loop
// waits for one.
#include <thread>

#include "runtime/core/engine/engine.h"
#include "tests/cpp/guided_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// Answers the guided token of an event, if it has one, with the next mask.
void answer(Engine& engine, const Event& event, Outcomes& so_far) {
  if (event.tokens.empty() || !event.finish.empty()) return;
  TW_CHECK_EQ(event.tokens.size(), 1u);  // the next has no mask yet
  size_t before = so_far[event.request_id + kNext * event.completion].tokens.size();
  int32_t generated = static_cast<int32_t>(before) + 1;
  engine.set_mask(event.request_id, event.completion, generated, mask_after(event.tokens.back(), generated));
}

// The consumer, until `finished` completions have ended. so_far: what was told before.
Outcomes serve(Engine& engine, const std::set<int64_t>& guided_ids, size_t finished, Outcomes so_far = {}) {
  size_t ended = 0;
  auto deadline = Clock::now() + kPatience;
  while (ended < finished && Clock::now() < deadline) {
    std::vector<Event> events = engine.wait_events(0.5);
    for (const Event& event : events) {
      ended += !event.finish.empty();
      if (guided_ids.contains(event.request_id)) answer(engine, event, so_far);
    }
    collect(std::move(events), &so_far);
  }
  TW_CHECK_EQ(ended, finished);
  return so_far;
}

// Request 1 is guided, 2 is not. Both have tokens, and 1 sits out, or is about to, for nobody sets its mask.
Outcomes stall(Engine& engine, double timeout_s = -1, const Request& other = request(2, {1, 2, 4}, 90)) {
  Request r = guided(request(1, {1, 2, 3}, 50));
  r.sampling.timeout_s = timeout_s;
  engine.submit(r);
  engine.submit(other);
  Outcomes so_far;
  size_t masks = 1;
  auto deadline = Clock::now() + kPatience;
  while ((so_far[2].tokens.empty() || so_far[1].tokens.size() < masks) && Clock::now() < deadline) {
    std::vector<Event> events = engine.wait_events(0.5);
    for (const Event& event : events) {
      if (event.request_id == 1 && so_far[2].tokens.empty()) answer(engine, event, so_far), ++masks;
    }
    collect(std::move(events), &so_far);
  }
  return so_far;
}

int32_t next_of(Outcomes& outcomes, int64_t id) { return static_cast<int32_t>(outcomes[id].tokens.size()); }

// Of those that were told something; request 2 may end in the events that stall() reads.
size_t still_alive(const Outcomes& outcomes) {
  return static_cast<size_t>(
      std::ranges::count_if(outcomes, [](auto& o) { return o.second.last.finish.empty(); }));
}

size_t ends(const Outcomes& outcomes, const char* finish) {
  return static_cast<size_t>(
      std::ranges::count_if(outcomes, [&](auto& o) { return o.second.last.finish == finish; }));
}

}  // namespace

TW_TEST(masks_are_refused_by_name) {
  Engine engine(fake(), options(60, 4, 64));
  TW_CHECK(!engine.set_mask(1, 0, 0, only({1})));
  TW_CHECK_ERROR(engine.set_mask(1, 0, 0, {1}), "InvalidRequestError");  // too short
  Request bare = request(1, {1}, 4);
  bare.sampling.guided = true;
  TW_CHECK_ERROR(engine.submit(bare), "InvalidRequestError");
  Outcomes outcomes = stall(engine);
  int32_t next = next_of(outcomes, 1);
  TW_CHECK_ERROR(engine.set_mask(1, 0, next - 1, only({1})), "InvalidRequestError");  // sampled already
  TW_CHECK(!engine.set_mask(1, 1, next, only({1})));
  TW_CHECK(engine.set_mask(1, 0, next + 1, only({5})));  // ahead of time
  TW_CHECK(engine.set_mask(1, 0, next, only({6})));
  while (next_of(outcomes, 1) < next + 2) collect(engine.wait_events(0.5), &outcomes);
  TW_CHECK(outcomes[1].tokens[next] == 6 && outcomes[1].tokens[next + 1] == 5);
  engine.abort(1);
  serve(engine, {}, still_alive(outcomes), outcomes);
  TW_CHECK(!engine.set_mask(1, 0, next + 2, only({5})));
}

TW_TEST(who_is_not_guided_takes_no_mask) {
  Engine engine(fake(), options(60, 1, 64));
  engine.submit(guided(request(1, {1, 2, 3}, 50)));  // has the only place, and no mask after the first
  engine.submit(request(2, {1}, 4));
  TW_CHECK_ERROR(engine.set_mask(2, 0, 0, only({1})), "InvalidRequestError");
  TW_CHECK(!engine.set_mask(2, 1, 0, only({1})));
}

TW_TEST(a_guided_crowd_equals_solo_runs) {
  std::mt19937 random(31);
  std::vector<Request> requests;
  std::set<int64_t> ids;
  size_t completions = 0;
  for (int64_t id = 0; id < 60; ++id) {
    Request r = random_request(random, id, 1 + static_cast<int32_t>(random() % 3), 40);
    if (random() % 3) r = guided(r), ids.insert(id);
    completions += static_cast<size_t>(r.sampling.n);
    requests.push_back(r);
  }
  EngineOptions o = options(40, 8, 40);
  o.debug_preempt_every = 5;
  o.max_queue = 100;
  Engine engine(fake(), o);
  std::thread client([&] {
    std::mt19937 own(1);
    for (const Request& r : requests) {
      engine.submit(r);
      if (own() % 4 == 0) engine.abort(static_cast<int64_t>(own() % 60));
      if (own() % 4 == 0) engine.abort(static_cast<int64_t>(own() % 60), 0);
    }
  });
  Outcomes outcomes = serve(engine, ids, completions);
  client.join();
  size_t whole = 0;
  for (const Request& r : requests) {
    for (int32_t completion = 0; completion < r.sampling.n; ++completion) {
      Outcome& outcome = outcomes[r.id + kNext * completion];
      Outcome alone = r.sampling.guided ? guided_alone(r, completion) : solo_completion(r, completion);
      if (outcome.last.finish == "abort") {
        TW_CHECK(outcome.tokens.size() <= alone.tokens.size());
        alone.tokens.resize(outcome.tokens.size());
        TW_CHECK(outcome.tokens == alone.tokens);
      } else {
        TW_CHECK(same(outcome, alone));
        ++whole;
      }
    }
  }
  TW_CHECK(whole > 60);
  TW_CHECK_EQ(engine.stats().used_blocks, 0);
}

TW_TEST(an_abort_ends_the_wait) {
  for (bool one : {false, true}) {
    Engine engine(fake(), options(60, 4, 64));
    Outcomes outcomes = stall(engine);
    TW_CHECK(one ? engine.abort(1, 0) : engine.abort(1));
    outcomes = serve(engine, {}, still_alive(outcomes), outcomes);
    TW_CHECK(outcomes[1].last.finish == "abort");
    TW_CHECK(same(outcomes[2], solo(request(2, {1, 2, 4}, 90))));
    TW_CHECK_EQ(engine.stats().used_blocks, 0);
    TW_CHECK(!engine.abort(1));
  }
}

// Nobody waits for the mask but who needs it; then that one goes on as if nothing had been.
TW_TEST(others_end_while_a_mask_is_missing) {
  Engine engine(fake(), options(60, 4, 64));
  Outcomes outcomes = stall(engine);
  engine.submit(guided(request(3, {4, 2}, 30)));
  outcomes = serve(engine, {3}, still_alive(outcomes), outcomes);  // all but 1
  TW_CHECK(same(outcomes[2], solo(request(2, {1, 2, 4}, 90))));
  TW_CHECK(same(outcomes[3], guided_alone(guided(request(3, {4, 2}, 30)))));
  TW_CHECK_EQ(engine.stats().running, 1);
  int32_t next = next_of(outcomes, 1);
  TW_CHECK(engine.set_mask(1, 0, next, mask_after(outcomes[1].tokens.back(), next)));
  outcomes = serve(engine, {1}, 1, outcomes);
  TW_CHECK(same(outcomes[1], guided_alone(guided(request(1, {1, 2, 3}, 50)))));
  TW_CHECK(engine.stats().sat_out > 0);
}

// All that may come is heard while nobody can go on; then 1 goes on as if nothing had been.
TW_TEST(others_come_and_go_while_one_waits) {
  Engine engine(fake(), options(60, 4, 64));
  Outcomes outcomes = stall(engine);
  outcomes = serve(engine, {}, still_alive(outcomes) - 1, outcomes);
  engine.submit(request(3, {5}, 3));  // wakes the loop
  outcomes = serve(engine, {}, 1, outcomes);
  Request brief = guided(request(5, {5}, 3));
  brief.sampling.timeout_s = 0.02;
  engine.submit(brief);
  engine.submit(guided(request(4, {5}, 3)));
  outcomes = serve(engine, {}, 1, outcomes);  // nothing else wakes it
  TW_CHECK(outcomes[5].last.finish == "timeout");
  TW_CHECK(engine.abort(4));
  outcomes = serve(engine, {}, 1, outcomes);
  TW_CHECK_EQ(ends(outcomes, "abort"), 1u);
  int32_t next = next_of(outcomes, 1);
  TW_CHECK(engine.set_mask(1, 0, next, mask_after(outcomes[1].tokens.back(), next)));
  outcomes = serve(engine, {1}, 1, outcomes);
  TW_CHECK(same(outcomes[1], guided_alone(guided(request(1, {1, 2, 3}, 50)))));
  TW_CHECK(same(outcomes[3], solo(request(3, {5}, 3))));
}

TW_TEST(time_runs_out_while_the_loop_waits) {
  Engine engine(fake(), options(60, 4, 64));
  Outcomes outcomes = stall(engine, 1);
  outcomes = serve(engine, {}, still_alive(outcomes), outcomes);
  TW_CHECK(outcomes[1].last.finish == "timeout");
  TW_CHECK(same(outcomes[2], solo(request(2, {1, 2, 4}, 90))));
}

TW_TEST(a_consumer_that_never_answers_holds_no_shutdown_up) {
  for (double drain_s : {-1.0, 0.02}) {
    Engine engine(fake(), options(60, 4, 64));
    Outcomes outcomes = stall(engine);
    engine.shutdown(drain_s >= 0, drain_s);
    TW_CHECK(engine.stopped());
    outcomes = serve(engine, {}, still_alive(outcomes), outcomes);
    TW_CHECK(outcomes[1].last.finish == "abort");
    TW_CHECK_EQ(engine.stats().used_blocks, 0);
    TW_CHECK(!engine.set_mask(1, 0, next_of(outcomes, 1), only({1})));
  }
  Engine destroyed(fake(), options(60, 4, 64));
  stall(destroyed);
}

TW_TEST(a_drain_waits_for_masks_that_come) {
  Engine engine(fake(), options(60, 4, 64));
  for (int64_t id = 0; id < 4; ++id) engine.submit(guided(request(id, {1, static_cast<int32_t>(id)}, 30)));
  std::thread stopping([&] { engine.shutdown(true, -1); });
  Outcomes outcomes = serve(engine, {0, 1, 2, 3}, 4);
  stopping.join();
  for (auto& [id, outcome] : outcomes)
    TW_CHECK(same(outcome, guided_alone(guided(request(id, {1, static_cast<int32_t>(id)}, 30)))));
}

TW_TEST(a_dying_loop_lets_go_of_masks) {
  FakeBehaviour deadly;
  deadly.die_token = 49;
  Engine engine(fake(deadly), options(60, 4, 64));
  Request other = request(2, {1, 2, 4}, 90);
  other.sampling.bad_words = {{49}};
  Outcomes outcomes = stall(engine, -1, other);
  int32_t next = next_of(outcomes, 1);
  TW_CHECK(engine.set_mask(1, 0, next, only({49})));
  outcomes = serve(engine, {}, still_alive(outcomes), outcomes);
  TW_CHECK(outcomes[1].last.error_type == "EngineStoppedError");
  TW_CHECK(engine.stopped());
  TW_CHECK(!engine.set_mask(1, 0, next + 1, only({1})));
}

TW_TEST(guided_engines_may_be_destroyed_at_any_moment) {
  std::mt19937 random(33);
  for (int round = 0; round < 20; ++round) {
    Engine engine(fake(), options(40, 4, 16));
    std::set<int64_t> ids = {0, 1, 2};
    for (int64_t id : ids) engine.submit(guided(random_request(random, id)));
    std::thread consumer([&] { serve(engine, ids, 3); });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    engine.shutdown(false, 0);
    consumer.join();
  }
}

TW_TEST_MAIN()
