// Heads that propose tokens: the engine with them says what every request says alone, and they compute each
// position from the feature and the token that belong to it.
#include "runtime/core/speculation/draft_heads.h"

#include <random>

#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

FakeBehaviour with_heads(bool keeps = false) {
  FakeBehaviour behaviour;
  behaviour.heads = true;
  behaviour.keeps = keeps;
  return behaviour;
}

// An engine with heads. The fake heads say what the model says, wherever their cache holds what belongs
// there.
struct Case {
  FakeExecutor* executor;
  DraftHeads* heads;
  EngineCore core;
  int64_t measured;  // stale rows of the measurement that opens the engine, in a cache of nobody's

  int64_t stale_rows() const { return executor->stale_rows() - measured; }
  static Case make(const EngineOptions& o, FakeBehaviour behaviour = with_heads()) {
    auto executor = std::make_unique<FakeExecutor>(kVocab, kMaxSeqLen, kBlockSize, behaviour);
    FakeExecutor* const seen = executor.get();
    auto heads = std::make_unique<DraftHeads>(*seen, HeadsOptions{o.max_batch_size, o.max_num_tokens, {}});
    DraftHeads* const own = heads.get();
    Case made{seen, own, EngineCore(std::move(executor), o, nullptr, std::move(heads)), 0};
    made.measured = seen->stale_rows();
    return made;
  }
};

EngineOptions with_tokens(EngineOptions o, int32_t tokens) {
  o.speculation.tokens = tokens;
  return o;
}

Request four_beams(int32_t tokens) {
  Request beams = request(0, {1, 2, 3}, tokens);
  beams.sampling.beam_width = 4;
  beams.sampling.n = 4;
  return beams;
}

void expect_as_alone(Outcomes& outcomes, const std::vector<Request>& requests) {
  for (const Request& r : requests)
    for (int32_t i = 0; i < r.sampling.n; ++i)
      TW_CHECK(same(outcomes[r.id + kNext * i], solo_completion(r, i)));
}

}  // namespace

// Without a prefix cache, preemption and forks every position is the sequence's own: each proposal is right.
TW_TEST(each_position_gets_the_feature_and_the_token_that_belong_to_it) {
  std::mt19937 random(5);
  int64_t proposed = 0, accepted = 0, ends = 0, drawn = 0;
  for (int round = 0; round < 24; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 10; ++id) {
      requests.push_back(random_request(random, id));
      requests.back().sampling.prompt_logprobs = -1;
    }
    EngineOptions o = with_tokens(options(400, 5, 6 + static_cast<int32_t>(random() % 70)), 1 + round % 6);
    o.prefix_cache = false;
    FakeBehaviour behaviour = with_heads(round % 2 == 1);
    behaviour.draws = round % 3 == 1;
    behaviour.drawn = &drawn;
    Case c = Case::make(o, behaviour);
    Outcomes outcomes = run_core(c.core, requests);
    expect_as_alone(outcomes, requests);
    const SpeculationStats stats = c.core.stats().speculation;
    proposed += stats.proposed, accepted += stats.accepted;
    ends += static_cast<int64_t>(requests.size());
    TW_CHECK_EQ(stats.failures, 0);
    TW_CHECK_EQ(c.stale_rows(), 0);
    TW_CHECK_EQ(c.heads->mirrors(), 0);
  }
  // What was proposed behind an end is not verified: fewer than a proposal for each request.
  TW_CHECK(proposed > 2000 && proposed - accepted < 6 * ends && drawn > 100);
}

TW_TEST(the_engine_says_with_heads_what_it_says_without) {
  std::mt19937 random(12);
  int64_t proposed = 0, accepted = 0, preemptions = 0, hits = 0;
  for (int round = 0; round < 32; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 12; ++id)
      requests.push_back(random_request(random, id, 1 + static_cast<int32_t>(random() % 3), 40));
    EngineOptions o = with_tokens(
        options(30 + static_cast<int32_t>(random() % 60), 6, 8 + static_cast<int32_t>(random() % 60)),
        round % 6);
    o.debug_preempt_every = round % 4;
    o.debug_seed = static_cast<uint64_t>(round);
    FakeBehaviour behaviour = with_heads(round % 3 == 1);
    behaviour.fail_every = round % 5 == 0 ? 7 : 0;
    Case c = Case::make(o, behaviour);
    Outcomes outcomes = run_core(c.core, requests);
    expect_as_alone(outcomes, requests);
    const EngineStats stats = c.core.stats();
    proposed += stats.speculation.proposed, accepted += stats.speculation.accepted;
    preemptions += stats.steps.preemptions, hits += stats.steps.prefix_hit_tokens;
    TW_CHECK_EQ(stats.speculation.failures, 0);
    TW_CHECK_EQ(c.heads->mirrors(), 0);
  }
  TW_CHECK(proposed > 1000 && preemptions > 20 && hits > 1000);
  // Prefixes, forks and preemptions leave positions that were computed for another token. The fake heads say
  // nothing right behind such a one.
  TW_CHECK(accepted * 3 > proposed);
}

TW_TEST(features_are_computed_in_time_where_nothing_is_proposed) {
  EngineOptions o = with_tokens(options(100, 2, 64), 1);
  o.prefix_cache = false;
  o.speculation.max_rows = 1;  // of two sequences only one gets a proposal
  const std::vector<Request> requests = {request(0, std::vector<int32_t>(50, 1), 60),
                                         request(1, std::vector<int32_t>(50, 2), 60)};
  for (const bool keeps : {false, true}) {
    Case c = Case::make(o, with_heads(keeps));
    for (const Request& r : requests) c.core.add(r, Clock::now());
    Outcomes outcomes;
    int64_t most = 0;
    for (int step = 0; !c.core.idle(); ++step) {
      std::vector<Event> events;
      c.core.step(&events);
      collect(std::move(events), &outcomes);
      if (step > 4) most = std::max(most, c.heads->kept_features());
    }
    expect_as_alone(outcomes, requests);
    TW_CHECK(most > 4 && most < 2 * 70);
    TW_CHECK_EQ(c.stale_rows(), 0);
  }
}

// A sequence that loses its blocks has no features of what it had computed: it begins anew behind the prefix
// that it finds, and every proposal is right again where nobody else's positions are found.
TW_TEST(features_in_the_blocks_of_a_sequence_go_with_them) {
  int64_t proposed = 0, accepted = 0, preemptions = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 6; ++id)
      requests.push_back(request(id, {static_cast<int32_t>(id), 3, 1, 4, 1, 5}, 40));
    EngineOptions o = with_tokens(options(60, 3, 20), 1 + round % 4);
    o.prefix_cache = false;
    o.debug_preempt_every = 5 + round;
    o.debug_seed = static_cast<uint64_t>(round);
    Case c = Case::make(o, with_heads(true));
    Outcomes outcomes = run_core(c.core, requests);
    expect_as_alone(outcomes, requests);
    const EngineStats stats = c.core.stats();
    proposed += stats.speculation.proposed, accepted += stats.speculation.accepted;
    preemptions += stats.steps.preemptions;
    TW_CHECK_EQ(c.stale_rows(), 0);
  }
  TW_CHECK(preemptions > 10 && proposed > 500 && proposed - accepted < 6 * 12 * 4);
}

TW_TEST(no_features_are_asked_for_that_nobody_keeps) {
  EngineOptions o = with_tokens(options(200, 4, 64), 3);
  Case c = Case::make(o);
  const Request beams = four_beams(10);
  const int64_t before = c.executor->feature_steps();
  run_core(c.core, {beams});
  TW_CHECK_EQ(c.executor->feature_steps(), before);
  run_core(c.core, {request(1, {1, 2, 3}, 10)});
  TW_CHECK(c.executor->feature_steps() > before);
}

TW_TEST(beams_have_no_proposals) {
  EngineOptions o = with_tokens(options(200, 4, 64), 3);
  Case c = Case::make(o);
  const Request r = four_beams(20);
  Outcomes outcomes = run_core(c.core, {r});
  EngineCore plain(fake(), options(200, 4, 64));
  Outcomes expected = run_core(plain, {r});
  for (int32_t i = 0; i < 4; ++i) TW_CHECK(outcomes[kNext * i].tokens == expected[kNext * i].tokens);
  TW_CHECK_EQ(c.core.stats().speculation.proposed, 0);
}

TW_TEST(a_model_without_heads_and_tokens_that_do_not_fit_are_refused) {
  const auto refusal = [](bool heads, std::vector<int32_t> tokens, int32_t at_once = 1) {
    FakeBehaviour behaviour;
    behaviour.heads = heads;
    behaviour.at_once = at_once;
    FakeExecutor executor(kVocab, kMaxSeqLen, kBlockSize, behaviour);
    try {
      DraftHeads made(executor, {1, 16, std::move(tokens)});
    } catch (const Error& error) {
      return error.type();
    }
    return std::string();
  };
  TW_CHECK_EQ(refusal(false, {}), "InvalidOptionError");
  TW_CHECK_EQ(refusal(true, {1, 2, 3}), "EngineError");
  std::vector<int32_t> all(kVocab, 0);
  TW_CHECK_EQ(refusal(true, all), "");
  TW_CHECK_EQ(refusal(true, all, 2), "EngineError");
  all[3] = kVocab;
  TW_CHECK_EQ(refusal(true, all), "EngineError");
}

TW_TEST_MAIN()
