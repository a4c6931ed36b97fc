// Beam search: what a literal search over all continuations finds, whatever the company, the chunks, the
// preemptions and the kind of cache.
#include "runtime/core/sampling/beam_search.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// The logprob of every token that could follow these.
std::vector<double> row_after(const std::vector<int32_t>& tokens) {
  Request r = request(1, tokens, 1);
  r.sampling.logprobs = kVocab;
  EngineCore core(fake(), options(60, 1, kMaxSeqLen));
  const Outcomes outcomes = run_core(core, {r});
  std::vector<double> row(kVocab);
  for (const TokenLogprob& each : outcomes.at(1).logprobs.at(0))
    row[static_cast<size_t>(each.token)] = each.logprob;
  return row;
}

struct Found {
  std::vector<int32_t> tokens;
  double sum = 0, score = 0;
};

// transformers' _beam_search, written out: every continuation of every beam is made and sorted.
std::vector<Found> literal_search(const Request& r) {
  const Sampling& s = r.sampling;
  const auto width = static_cast<size_t>(s.beam_width);
  std::vector<Found> running = {{}}, done;
  for (int32_t length = 1;; ++length) {
    std::vector<Found> all;
    for (const Found& beam : running) {
      std::vector<int32_t> tokens = r.prompt;
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<double> row = row_after(tokens);
      for (int32_t token = 0; token < kVocab; ++token) {
        Found next = beam;
        next.tokens.push_back(token);
        next.sum += row[static_cast<size_t>(token)];
        all.push_back(next);
      }
    }
    std::ranges::stable_sort(all, [](const Found& a, const Found& b) { return a.sum > b.sum; });
    running.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      Found& one = all[i];
      const int32_t token = one.tokens.back();
      const bool ends = length == s.max_tokens || s.eos_token_ids.contains(token);
      one.score = one.sum / std::pow(length, s.length_penalty);
      if (ends && i < width) done.push_back(one);
      if (!ends && running.size() < width) running.push_back(one);
    }
    std::ranges::stable_sort(done, [](const Found& a, const Found& b) { return a.score > b.score; });
    if (done.size() > width) done.resize(width);
    if (running.empty()) return done;
    if (done.size() < width) continue;
    if (s.early_stopping == EarlyStopping::yes) return done;
    const bool longest = s.early_stopping == EarlyStopping::never && s.length_penalty > 0;
    if (running[0].sum / std::pow(longest ? s.max_tokens : length, s.length_penalty) <= done.back().score)
      return done;
  }
}

Request beams(std::mt19937& random, int64_t id, int32_t width) {
  Request r = random_request(random, id);
  r.sampling.temperature = 0;
  r.sampling.beam_width = width;
  r.sampling.n = 1 + static_cast<int32_t>(random()) % width;
  r.sampling.n = std::max(r.sampling.n, 1);
  r.sampling.max_tokens = std::min(r.sampling.max_tokens, 12);
  r.sampling.length_penalty = std::vector<double>{-1, 0, 0.7, 1, 2.5}[random() % 5];
  r.sampling.early_stopping =
      std::vector<EarlyStopping>{EarlyStopping::no, EarlyStopping::yes, EarlyStopping::never}[random() % 3];
  std::vector<int32_t> ends;
  for (size_t i = random() % 24; i > 0; --i) ends.push_back(static_cast<int32_t>(random() % kVocab));
  r.sampling.eos_token_ids = ends;
  return r;
}

Outcomes alone(const Request& r, FakeBehaviour behaviour = {}) {
  EngineOptions o = options(400, r.sampling.beam_width, kMaxSeqLen, std::max<int64_t>(behaviour.groups, 1));
  o.prefix_cache = false;
  EngineCore core(fake(behaviour), o);
  return run_core(core, {r});
}

bool same_answers(const Request& r, Outcomes& a, Outcomes& b) {
  for (int32_t i = 0; i < r.sampling.n; ++i) {
    const Outcome &one = a[r.id + kNext * i], &other = b[r.id + kNext * i];
    if (!same(one, other) || one.last.cumulative_logprob != other.last.cumulative_logprob) return false;
  }
  return true;
}

}  // namespace

TW_TEST(the_answers_are_those_of_a_literal_search) {
  std::mt19937 random(3);
  int stopped = 0, shorter = 0;
  for (int64_t id = 0; id < 200; ++id) {
    const Request r = beams(random, id, 2 + static_cast<int32_t>(random() % 5));
    const std::vector<Found> expected = literal_search(r);
    Outcomes outcomes = alone(r);
    TW_CHECK_EQ(outcomes.size(), static_cast<size_t>(r.sampling.n));
    for (int32_t i = 0; i < r.sampling.n; ++i) {
      const Outcome& outcome = outcomes[id + kNext * i];
      const Found& found = expected.at(static_cast<size_t>(i));
      TW_CHECK(outcome.tokens == found.tokens);
      TW_CHECK(std::abs(outcome.last.cumulative_logprob - found.sum) < 1e-4);
      const bool stop = r.sampling.eos_token_ids.contains(found.tokens.back());
      TW_CHECK_EQ(outcome.last.finish, std::string(stop ? "stop" : "length"));
      stopped += stop;
      shorter += static_cast<int32_t>(found.tokens.size()) < r.sampling.max_tokens;
      if (r.sampling.logprobs < 0) continue;
      double sum = 0;
      for (size_t t = 0; t < outcome.tokens.size(); ++t) {
        TW_CHECK_EQ(outcome.logprobs.at(t).at(0).token, outcome.tokens[t]);
        sum += outcome.logprobs[t][0].logprob;
      }
      TW_CHECK(std::abs(sum - found.sum) < 1e-4);
    }
  }
  TW_CHECK(stopped > 100 && shorter > 100);
}

TW_TEST(company_chunks_and_preemptions_change_nothing) {
  std::mt19937 random(5);
  int64_t preemptions = 0;
  for (int round = 0; round < 24; ++round) {
    FakeBehaviour behaviour;
    if (round % 4 == 1) behaviour.groups = 2, behaviour.window = 1 + static_cast<int32_t>(random() % 20);
    if (round % 4 == 2) behaviour = with_states();
    if (round % 4 == 3) behaviour = with_states(0);
    const int32_t blocks = 60 + static_cast<int32_t>(random() % 60);
    EngineOptions o =
        options(blocks, 6, 6 + static_cast<int32_t>(random() % 60), std::max<int64_t>(behaviour.groups, 1));
    o.prefix_cache = round % 3 != 0;
    o.state_snapshots = 3;
    o.debug_preempt_every = round % 5;
    o.debug_seed = static_cast<uint64_t>(round);
    EngineCore core(fake(behaviour), o);
    std::vector<Request> requests;
    for (int64_t id = 0; id < 10; ++id) {
      requests.push_back(random() % 2 ? beams(random, id, 2 + static_cast<int32_t>(random() % 5))
                                      : random_request(random, id));
      if (requests.back().sampling.prompt_logprobs >= 0) requests.back().sampling.prompt_logprobs = -1;
      if (!requests.back().sampling.seed) requests.back().sampling.seed = 1;
    }
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      Outcomes expected = alone(r, behaviour);
      TW_CHECK(same_answers(r, outcomes, expected));
    }
    preemptions += core.stats().steps.preemptions;
    TW_CHECK_EQ(core.stats().failed, 0);
  }
  TW_CHECK(preemptions > 50);
}

TW_TEST(beams_that_hardly_fit_wait_for_each_other) {
  std::mt19937 random(9);
  int64_t preemptions = 0;
  for (int round = 0; round < 40; ++round) {
    Request r = beams(random, 0, 4);
    r.sampling.prompt_logprobs = -1;
    // As many blocks as validate_request asks for, or a few more.
    const int64_t total = static_cast<int64_t>(r.prompt.size()) + r.sampling.max_tokens;
    const int64_t shared = static_cast<int64_t>(r.prompt.size()) / kBlockSize,
                  each = (total - 2) / kBlockSize + 1;
    const auto least = static_cast<int32_t>(shared + 4 * (each - shared));
    const int32_t blocks = std::max(least, 20) + round % 3;
    // Older requests grow into the blocks, so that some of the beams are preempted while others are parked.
    std::vector<Request> requests = {request(1, {1, 2, 3}, 60), request(2, {4, 5}, 50), r};
    EngineCore core(fake(), options(blocks, 6, 40));
    Outcomes outcomes = run_core(core, requests), expected = alone(r);
    TW_CHECK(same_answers(r, outcomes, expected));
    preemptions += core.stats().steps.preemptions;
  }
  TW_CHECK(preemptions > 5);
}

TW_TEST(a_search_that_is_ended_tells_of_its_n_completions) {
  std::mt19937 random(2);
  for (int steps = 0; steps < 6; ++steps) {
    Request r = beams(random, 7, 4);
    r.sampling.n = 2;
    r.sampling.max_tokens = 12;
    r.sampling.eos_token_ids = {};
    EngineCore core(fake(), options(100, 4, 64));
    core.add(r, Clock::now());
    std::vector<Event> events;
    for (int i = 0; i < steps; ++i) core.step(&events);
    TW_CHECK(events.empty() || r.sampling.prompt_logprobs >= 0);
    events.clear();
    core.end(7, nullptr, &events);
    TW_CHECK_EQ(events.size(), size_t{2});
    for (const Event& event : events) TW_CHECK_EQ(event.finish, std::string("abort"));
    TW_CHECK(core.idle());
    core.check();
    TW_CHECK_EQ(core.stats().used_blocks, 0);
  }
}

TW_TEST(failures_end_the_search_alone) {
  std::mt19937 random(4);
  int64_t failed = 0;
  for (int round = 0; round < 12; ++round) {
    FakeBehaviour behaviour = round % 2 ? with_states() : FakeBehaviour{};
    behaviour.fail_copies = 2 + static_cast<int32_t>(random() % 6);
    if (round % 3 == 0) behaviour.fail_every = 3;
    if (round % 3 == 1) behaviour.late_token = static_cast<int32_t>(random() % kVocab);
    std::vector<Request> requests;
    for (int64_t id = 0; id < 6; ++id) requests.push_back(beams(random, id, 3));
    EngineCore core(fake(behaviour), options(100, 6, 40));
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      const std::string& finish = outcomes[r.id].last.finish;
      TW_CHECK(!finish.empty());
      if (finish == "error") continue;
      behaviour.fail_copies = behaviour.fail_every = 0;
      Outcomes expected = alone(r, behaviour);
      TW_CHECK(same_answers(r, outcomes, expected));
    }
    failed += core.stats().failed;
    core.check();
  }
  TW_CHECK(failed > 3);
}

TW_TEST(what_leaves_too_few_answers_is_an_error) {
  Request r = request(1, {1, 2}, 3);
  r.sampling.beam_width = r.sampling.n = 3;
  for (int32_t token = 0; token < kVocab; ++token)
    if (token != 5) r.sampling.logit_bias.push_back({token, -std::numeric_limits<double>::infinity()});
  r.sampling.eos_token_ids = {5};
  EngineCore core(fake(), options(100, 4, 64));
  Outcomes outcomes = run_core(core, {r});
  TW_CHECK_EQ(outcomes[1].last.error_type, std::string("InvalidRequestError"));
}

TW_TEST(impossible_searches_are_refused) {
  const ModelFacts facts = fake()->facts();
  const std::vector<GroupShape> groups(1, GroupShape{100});
  const auto refused = [&](const std::function<void(Sampling&)>& change,
                           const char* type = "InvalidRequestError") {
    Request r = request(1, {1, 2, 3}, 8);
    r.sampling.beam_width = 4;
    change(r.sampling);
    TW_CHECK_ERROR(validate_request(r, facts, groups, 8), type);
  };
  validate_request(request(1, {1}, 8), facts, groups, 8);
  refused([](Sampling& s) { s.beam_width = 0; });
  refused([](Sampling& s) { s.beam_width = 9; });
  refused([](Sampling& s) { s.n = 5; });
  refused([](Sampling& s) { s.length_penalty = std::numeric_limits<double>::quiet_NaN(); });
  refused([](Sampling& s) { s.guided = true; });
}

TW_TEST_MAIN()
