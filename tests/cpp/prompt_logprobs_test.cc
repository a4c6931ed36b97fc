// prompt_logprobs in EngineCore, over a fake model. That crowds change nothing: engine_core_test.cc.
#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

// Each row is told of once, by the tokens it follows, whatever cut the prompt up or came between.
TW_TEST(prompt_logprobs_are_those_of_shorter_prompts) {
  Request r = request(1, {5, 1, 4, 1, 3, 9, 2, 6, 8, 7}, 1);
  r.sampling.prompt_logprobs = 3;
  r.sampling.temperature = 2;  // and a bias: neither changes what is told
  r.sampling.logit_bias = {{1, 5.0}};
  Outcome whole = solo(r);
  TW_CHECK_EQ(whole.prompt_logprobs.size(), r.prompt.size() - 1);
  for (size_t i = 1; i < r.prompt.size(); ++i) {
    Request before = request(2, {r.prompt.begin(), r.prompt.begin() + static_cast<int>(i)}, 1);
    before.sampling.logprobs = kVocab;
    Outcome one = solo(before);
    const std::vector<TokenLogprob>&told = whole.prompt_logprobs[i - 1], &all = one.logprobs[0];
    TW_CHECK_EQ(told[0].token, r.prompt[i]);
    TW_CHECK_EQ(told.size(), told[0].rank <= 3 ? 3u : 4u);
    for (const TokenLogprob& entry : told) {
      auto same_token = [&](const TokenLogprob& other) { return other.token == entry.token; };
      auto other = std::ranges::find_if(all, same_token);
      TW_CHECK(other->logprob == entry.logprob && other->rank == entry.rank);
    }
  }
}

// A scoring request looks nothing up, is cut to the row budget and lets others pass through the same step.
TW_TEST(prompt_logprobs_keep_to_the_row_budget) {
  EngineOptions o = options(60, 4, 32);
  o.max_prompt_rows = 5;
  EngineCore core(fake(), o);
  Request r = request(1, std::vector<int32_t>(20, 3), 4);
  Outcomes first = run_core(core, {r});
  r.sampling.prompt_logprobs = 0;
  int64_t steps = core.stats().steps.steps;
  Outcomes outcomes = run_core(core, {r});
  TW_CHECK_EQ(outcomes[1].prompt_logprobs.size(), 19u);
  TW_CHECK_EQ(outcomes[1].last.cached_tokens, 0);
  TW_CHECK(outcomes[1].tokens == first[1].tokens);
  TW_CHECK_EQ(core.stats().steps.steps - steps, 4 + 3);  // 5 + 5 + 5 + the rest, then the other three tokens
  TW_CHECK_EQ(core.stats().steps.prefix_hit_tokens, 0);
}

// The prompt is computed once and told of once, by the first of the completions.
TW_TEST(several_completions_have_one_prompt) {
  EngineOptions o = options(60, 4, 32);
  o.max_prompt_rows = 3;
  EngineCore core(fake(), o);
  Request r = request(1, {5, 1, 4, 1, 3, 9, 2, 6, 8, 7}, 3);
  r.sampling.prompt_logprobs = 2;
  r.sampling.n = 3;
  r.sampling.temperature = 1;
  r.sampling.seed = 4;
  Outcomes outcomes = run_core(core, {r});
  for (int32_t i = 0; i < 3; ++i) TW_CHECK(same(outcomes[1 + kNext * i], solo_completion(r, i)));
  TW_CHECK_EQ(outcomes[1].prompt_logprobs.size(), 9u);
  TW_CHECK(outcomes[1 + kNext].prompt_logprobs.empty());
}

TW_TEST_MAIN()
