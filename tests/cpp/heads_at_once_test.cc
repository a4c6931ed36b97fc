// Heads that say several tokens at once: the engine with them says what every request says alone, and they
// read the feature of the last right token.
#include "runtime/core/speculation/heads_at_once.h"

#include <random>

#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

constexpr int32_t kAtOnce = 3;

struct Case {
  FakeExecutor* executor;
  HeadsAtOnce* heads;
  EngineCore core;

  static Case make(const EngineOptions& o, FakeBehaviour behaviour = {}) {
    behaviour.heads = true;
    behaviour.at_once = kAtOnce;
    auto executor = std::make_unique<FakeExecutor>(kVocab, kMaxSeqLen, kBlockSize, behaviour);
    FakeExecutor* const seen = executor.get();
    auto heads = std::make_unique<HeadsAtOnce>(*seen, HeadsOptions{o.max_batch_size, o.max_num_tokens, {}});
    HeadsAtOnce* const own = heads.get();
    return {seen, own, EngineCore(std::move(executor), o, nullptr, std::move(heads))};
  }
};

EngineOptions with_tokens(EngineOptions o, int32_t tokens) {
  o.speculation.tokens = tokens;
  return o;
}

void expect_as_alone(Outcomes& outcomes, const std::vector<Request>& requests) {
  for (const Request& r : requests)
    for (int32_t i = 0; i < r.sampling.n; ++i)
      TW_CHECK(same(outcomes[r.id + kNext * i], solo_completion(r, i)));
}

}  // namespace

TW_TEST(the_engine_says_with_heads_what_it_says_without) {
  std::mt19937 random(12);
  int64_t proposed = 0, preemptions = 0, hits = 0;
  for (int round = 0; round < 24; ++round) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 12; ++id)
      requests.push_back(random_request(random, id, 1 + static_cast<int32_t>(random() % 3), 40));
    EngineOptions o = with_tokens(
        options(30 + static_cast<int32_t>(random() % 60), 6, 8 + static_cast<int32_t>(random() % 60)),
        round % 6);
    o.debug_preempt_every = round % 4;
    o.debug_seed = static_cast<uint64_t>(round);
    FakeBehaviour behaviour;
    behaviour.keeps = round % 2 == 1;
    behaviour.fail_every = round % 5 == 0 ? 7 : 0;
    Case c = Case::make(o, behaviour);
    Outcomes outcomes = run_core(c.core, requests);
    expect_as_alone(outcomes, requests);
    const EngineStats stats = c.core.stats();
    proposed += stats.speculation.proposed;
    preemptions += stats.steps.preemptions, hits += stats.steps.prefix_hit_tokens;
    TW_CHECK_EQ(stats.speculation.failures, 0);
    TW_CHECK_EQ(c.heads->mirrors(), 0);
    for (size_t place = kAtOnce; place < stats.speculation.accepted_at.size(); ++place)
      TW_CHECK_EQ(stats.speculation.accepted_at[place], 0);
  }
  TW_CHECK(proposed > 1000 && preemptions > 20 && hits > 1000);
}

// The fake heads say what the model says of greedy requests: each proposal is right, but for those behind an
// end.
TW_TEST(they_read_the_feature_of_the_last_right_token) {
  for (int32_t tokens : {1, 2, 3, 9}) {
    std::vector<Request> requests;
    for (int64_t id = 0; id < 8; ++id) requests.push_back(request(id, {1, static_cast<int32_t>(id), 5}, 50));
    FakeBehaviour behaviour;
    behaviour.keeps = tokens % 2 == 1;
    Case c = Case::make(with_tokens(options(400, 5, 40), tokens), behaviour);
    Outcomes outcomes = run_core(c.core, requests);
    expect_as_alone(outcomes, requests);
    const SpeculationStats stats = c.core.stats().speculation;
    TW_CHECK(stats.proposed > 0 && stats.proposed - stats.accepted <= 8 * kAtOnce);
    const int32_t most = std::min(tokens, kAtOnce);
    TW_CHECK(stats.accepted_at[static_cast<size_t>(most - 1)] > 40);
    TW_CHECK(stats.proposed <= most * stats.drafts);
  }
}

TW_TEST(no_features_are_asked_for_that_nobody_reads) {
  Case c = Case::make(with_tokens(options(200, 4, 64), 3));
  Request beams = request(0, {1, 2, 3}, 10);
  beams.sampling.beam_width = beams.sampling.n = 4;
  const int64_t before = c.executor->feature_steps();
  run_core(c.core, {beams});
  TW_CHECK_EQ(c.executor->feature_steps(), before);
  TW_CHECK_EQ(c.core.stats().speculation.proposed, 0);
  run_core(c.core, {request(1, {1, 2, 3}, 10)});
  TW_CHECK(c.executor->feature_steps() > before);
}

TW_TEST_MAIN()
