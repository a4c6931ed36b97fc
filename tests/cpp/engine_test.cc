// The engine over a fake model that sees every addressing mistake: crowds equal solo runs, errors stay where
// they arose, aborts and shutdowns at any moment, nothing leaks.
#include "runtime/core/engine.h"

#include <map>
#include <random>

#include "tests/cpp/check.h"
#include "tests/cpp/fake_executor.h"

using namespace tensorwright;
using tw_test::FakeBehaviour;
using tw_test::FakeExecutor;

namespace {

constexpr int32_t kVocab = 50, kMaxSeqLen = 120, kBlockSize = 4;

std::unique_ptr<Executor> fake(FakeBehaviour behaviour = {}) {
  return std::make_unique<FakeExecutor>(kVocab, kMaxSeqLen, kBlockSize, behaviour);
}

EngineOptions options(int32_t blocks, int32_t batch, int32_t tokens, int64_t groups = 1) {
  EngineOptions o;
  o.kv_cache_bytes = blocks * 100 * groups;
  o.max_batch_size = batch;
  o.max_num_tokens = tokens;
  return o;
}

Request request(int64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
  Request r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

// Everything a request was told, put together.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<std::vector<TokenLogprob>> logprobs;
  Event last;
};
using Outcomes = std::map<int64_t, Outcome>;

void collect(std::vector<Event> events, Outcomes* outcomes) {
  for (Event& event : events) {
    Outcome& outcome = (*outcomes)[event.request_id];
    TW_CHECK(outcome.last.finish.empty());  // nothing comes after the end
    outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
    outcome.logprobs.insert(outcome.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    outcome.last = std::move(event);
  }
}

Outcomes run_core(EngineCore& core, const std::vector<Request>& requests) {
  Outcomes outcomes;
  for (const Request& r : requests) core.add(r, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    collect(std::move(events), &outcomes);
  }
  TW_CHECK_EQ(core.stats().used_blocks, 0);
  return outcomes;
}

Outcome solo(const Request& r, int64_t groups = 1) {
  EngineOptions o = options(100, 1, kMaxSeqLen, groups);
  o.prefix_cache = false;
  FakeBehaviour behaviour;
  behaviour.groups = groups;
  EngineCore core(fake(behaviour), o);
  return run_core(core, {r})[r.id];
}

bool same(const Outcome& a, const Outcome& b) {
  auto equal = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank;
  };
  bool result = a.tokens == b.tokens && a.logprobs.size() == b.logprobs.size() &&
                a.last.finish == b.last.finish && a.last.stop_token == b.last.stop_token;
  for (size_t i = 0; result && i < a.logprobs.size(); ++i)
    result = std::ranges::equal(a.logprobs[i], b.logprobs[i], equal);
  return result;
}

Request random_request(std::mt19937& random, int64_t id) {
  // Few beginnings, so that prefixes are shared.
  std::vector<int32_t> prompt(1 + random() % 60, static_cast<int32_t>(random() % 3));
  for (size_t i = random() % prompt.size(); i < prompt.size(); ++i)
    prompt[i] = static_cast<int32_t>(random() % 40);
  Request r = request(id, std::move(prompt), 1 + static_cast<int32_t>(random() % 40));
  if (random() % 2) {
    r.sampling.temperature = 0.5 + static_cast<double>(random() % 20) / 10;
    r.sampling.seed = random() % 5;
    r.sampling.top_k = static_cast<int32_t>(random() % 20);
    r.sampling.top_p = random() % 2 ? 1 : 0.8;
  }
  if (random() % 2) r.sampling.logprobs = static_cast<int32_t>(random() % 4);
  if (random() % 2) r.sampling.eos_token_ids = {static_cast<int32_t>(random() % kVocab)};
  return r;
}

Outcomes wait_for(Engine& engine, size_t finished) {
  Outcomes outcomes;
  auto ended = [&] {
    return static_cast<size_t>(
        std::ranges::count_if(outcomes, [](auto& o) { return !o.second.last.finish.empty(); }));
  };
  auto deadline = Clock::now() + std::chrono::seconds(60);
  while (ended() < finished && Clock::now() < deadline) collect(engine.wait_events(0.5), &outcomes);
  TW_CHECK_EQ(ended(), finished);
  return outcomes;
}

}  // namespace

TW_TEST(finish_reasons) {
  Outcome plain = solo(request(1, {1, 2, 3}, 12));
  TW_CHECK(plain.last.finish == "length");
  TW_CHECK_EQ(plain.tokens.size(), 12u);
  int32_t fifth = plain.tokens[4];
  size_t first = std::ranges::find(plain.tokens, fifth) - plain.tokens.begin() + 1;
  Request r = request(1, {1, 2, 3}, 12);
  r.sampling.eos_token_ids = {fifth};
  Outcome stopped = solo(r);
  TW_CHECK(stopped.last.finish == "stop");
  TW_CHECK_EQ(stopped.last.stop_token, fifth);
  TW_CHECK_EQ(stopped.tokens.size(), first);  // the token itself is there
  r.sampling.ignore_eos = true;
  TW_CHECK(same(solo(r), plain));
  r.sampling.stop_token_ids = {fifth};
  TW_CHECK(same(solo(r), stopped));
}

TW_TEST(crowds_equal_solo_runs_under_every_condition) {
  std::mt19937 random(11);
  int64_t preemptions = 0, hits = 0, evictions = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 25; ++id) requests.push_back(random_request(random, id));
    int64_t groups = 1 + round % 2;
    EngineOptions o =
        options(25 + static_cast<int32_t>(random() % 40), 8, 8 + static_cast<int32_t>(random() % 60), groups);
    o.prefix_cache = round % 3 != 0;
    o.max_chunk = round % 2 * 7;
    o.debug_preempt_every = round % 4;
    o.debug_seed = round;
    FakeBehaviour behaviour;
    behaviour.fail_every = round % 5 == 4 ? 3 : 0;  // and steps that fail in company
    behaviour.groups = groups;
    EngineCore core(fake(behaviour), o);
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      TW_CHECK(same(outcomes[r.id], solo(r, groups)));
      TW_CHECK(outcomes[r.id].last.finish == "stop" || outcomes[r.id].last.finish == "length");
      TW_CHECK_EQ(outcomes[r.id].logprobs.size(), r.sampling.logprobs < 0 ? 0 : outcomes[r.id].tokens.size());
    }
    preemptions += core.stats().steps.preemptions;
    hits += core.stats().steps.prefix_hit_tokens;
    evictions += core.stats().evictions;
    TW_CHECK_EQ(core.stats().finished, 25);
    TW_CHECK_EQ(core.stats().steps.rolled_back > 0, behaviour.fail_every > 0);
  }
  TW_CHECK(preemptions > 20);
  TW_CHECK(hits > 500);
  TW_CHECK(evictions > 100);
}

TW_TEST(the_guilty_request_dies_alone) {
  for (int kind = 0; kind < 3; ++kind) {
    FakeBehaviour behaviour;
    (kind == 0 ? behaviour.throw_token : kind == 1 ? behaviour.late_token : behaviour.nan_token) = 49;
    EngineCore core(fake(behaviour), options(60, 8, 64));
    std::vector<Request> requests;
    for (int64_t id = 0; id < 6; ++id) requests.push_back(request(id, {7, 8, static_cast<int32_t>(id)}, 10));
    requests[2].prompt.push_back(49);
    Outcomes outcomes = run_core(core, requests);
    int untouched = 0;
    for (const Request& r : requests) {
      Outcome alone = solo(r);
      if (r.id == 2 || std::ranges::find(alone.tokens, 49) != alone.tokens.end()) continue;
      TW_CHECK(same(outcomes[r.id], alone));
      ++untouched;
    }
    TW_CHECK(untouched >= 3);
    TW_CHECK(outcomes[2].last.finish == "error");
    TW_CHECK(outcomes[2].last.error_type == "TensorwrightError");
    TW_CHECK(outcomes[2].last.error.find(kind == 0   ? "poison"
                                         : kind == 1 ? "late poison"
                                                     : "NaN") != std::string::npos);
    TW_CHECK(core.stats().failed >= 1);
  }
}

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
  engine.submit(request(1, {1}, 40));  // the last token needs no slot
  Outcomes outcomes = wait_for(engine, 1);
  TW_CHECK_EQ(outcomes[1].tokens.size(), 40u);
}

TW_TEST(impossible_options_are_refused_by_name) {
  TW_CHECK_ERROR(EngineCore(fake(), options(0, 1, 1)), "OutOfMemoryError");
  TW_CHECK_ERROR(EngineCore(fake(), options(9, 4, 3)), "InvalidOptionError");
  TW_CHECK_ERROR(EngineCore(fake(), options(9, 0, 3)), "InvalidOptionError");
  EngineOptions o = options(9, 1, 1);
  o.max_queue = 0;
  TW_CHECK_ERROR(EngineCore(fake(), o), "InvalidOptionError");
  EngineCore core(fake(), options(9, 1, 1));
  TW_CHECK_EQ(core.blocks(), 9);
}

TW_TEST(the_queue_is_bounded_and_ids_are_unique) {
  FakeBehaviour slow;
  slow.sleep_us = 2000;
  EngineOptions o = options(60, 1, 16);
  o.max_queue = 3;
  Engine engine(fake(slow), o);
  engine.submit(request(1, {1}, 50));
  TW_CHECK_ERROR(engine.submit(request(1, {1}, 50)), "InvalidRequestError");
  while (engine.stats().running == 0) engine.wait_events(0.01);
  for (int64_t id = 2; id <= 4; ++id) engine.submit(request(id, {1}, 2));
  TW_CHECK_ERROR(engine.submit(request(5, {1}, 2)), "QueueFullError");
  TW_CHECK_EQ(engine.stats().waiting, 3);
  wait_for(engine, 4);
  engine.submit(request(1, {1}, 2));  // the id is free again
  wait_for(engine, 1);
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
  for (int64_t id = 0; id < 300; ++id) requests.push_back(random_request(random, id));
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
        engine.stats();
      }
    });
  }
  Outcomes outcomes = wait_for(engine, 300);
  for (std::thread& thread : threads) thread.join();
  int aborted = 0;
  for (const Request& r : requests) {
    Outcome alone = solo(r);
    Outcome& crowd = outcomes[r.id];
    if (crowd.last.finish == "abort") {
      ++aborted;
      TW_CHECK(crowd.tokens.size() <= alone.tokens.size());
      alone.tokens.resize(crowd.tokens.size());
      TW_CHECK(crowd.tokens == alone.tokens);
    } else {
      TW_CHECK(same(crowd, alone));
    }
  }
  TW_CHECK(aborted > 5 && aborted < 150);
  EngineStats stats = engine.stats();
  TW_CHECK_EQ(stats.used_blocks, 0);
  TW_CHECK_EQ(stats.waste_slots, 0);
  TW_CHECK_EQ(stats.aborted, aborted);
  TW_CHECK_EQ(stats.finished, 300 - aborted);
  TW_CHECK(!engine.abort(0));
}

TW_TEST(abort_frees_blocks_before_the_next_step) {
  EngineCore core(fake(), options(20, 1, 64));
  std::vector<Event> events;
  core.add(request(1, {1, 2, 3, 4, 5}, 9), Clock::now());
  core.add(request(2, {1, 2, 3, 4, 5}, 9), Clock::now());
  core.step(&events);
  TW_CHECK_EQ(core.stats().used_blocks, 2);
  core.end(2, nullptr, &events);  // waiting
  core.end(1, nullptr, &events);  // running
  core.end(3, nullptr, &events);  // unknown
  TW_CHECK_EQ(core.stats().used_blocks, 0);
  TW_CHECK_EQ(events.size(), 3u);
  TW_CHECK(events[1].finish == "abort" && events[1].request_id == 2 && events[1].queue_s == -1);
}

TW_TEST(news_pile_up_in_order_when_nobody_fetches) {
  Engine engine(fake(), options(60, 4, 64));
  engine.submit(request(1, {1, 2, 3}, 30));
  while (engine.stats().finished == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<Event> events = engine.wait_events(1);
  TW_CHECK_EQ(events.size(), 1u);
  TW_CHECK(events[0].tokens == solo(request(1, {1, 2, 3}, 30)).tokens);
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
  Engine engine(fake(slow), options(60, 2, 16));
  engine.submit(request(1, {1, 2}, 100));
  engine.shutdown(true, 0.01);  // not enough time
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

TW_TEST_MAIN()
