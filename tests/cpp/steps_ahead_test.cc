// Steps that are started before the tokens of the last one are known: requests are answered as alone,
// whatever ends, is aborted, is preempted or turns out wrong while steps are underway.
#include <random>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/engine_cases.h"

using namespace tw_test;

namespace {

FakeBehaviour ahead(int64_t* tokens) {
  FakeBehaviour behaviour;
  behaviour.draws = behaviour.ahead = true;
  behaviour.ahead_of = tokens;
  return behaviour;
}

// A request whose tokens the executor draws, or, seldom, one that wants more of its rows.
Request drawn_request(std::mt19937& random, int64_t id, int32_t blocks) {
  Request r = random_request(random, id, random() % 6 ? 1 : 3, blocks);
  if (random() % 8) r.sampling.logprobs = r.sampling.prompt_logprobs = -1;
  r.sampling.max_tokens = std::min(r.sampling.max_tokens, kMaxSeqLen - static_cast<int32_t>(r.prompt.size()));
  if (r.sampling.temperature > 0 && !r.sampling.seed) r.sampling.seed = 1;
  return r;
}

// Runs requests that come in little by little, and aborts some of them at any moment.
Outcomes run_with_aborts(EngineCore& core, const std::vector<Request>& requests, std::mt19937& random) {
  Outcomes outcomes;
  size_t next = 0;
  while (next < requests.size() || core.can_step()) {
    std::vector<Event> events;
    while (next < requests.size() && random() % 3 == 0) core.add(requests[next++], Clock::now());
    if (next > 0 && random() % 12 == 0) core.end(requests[random() % next].id, nullptr, &events);
    core.step(&events);
    core.check();
    collect(std::move(events), &outcomes);
  }
  return outcomes;
}

bool begins_with(const Tokens& tokens, const Tokens& beginning) {
  return beginning.size() <= tokens.size() && std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

}  // namespace

// The token of each step but the last is one that the next step began without. The tokens of three are left
// to the host: what was started behind them was for nobody, and is started again.
TW_TEST(a_step_begins_before_the_token_of_the_last_is_known) {
  int64_t tokens = 0;
  EngineCore core(fake(ahead(&tokens)), options(60, 8, 64));
  const Request r = request(1, {1, 2, 3, 1}, 9);
  TW_CHECK(same(run_core(core, {r})[1], solo(r)));
  TW_CHECK_EQ(tokens, 8);
  TW_CHECK_EQ(core.stats().steps_ahead, 8 + 3);
}

// A row that the host draws from, a proposal and a grammar need the tokens before the next step.
TW_TEST(who_needs_its_row_waits_for_it) {
  int64_t tokens = 0;
  EngineCore core(fake(ahead(&tokens)), options(60, 8, 64));
  Request r = request(1, {1, 2, 3, 1}, 9);
  r.sampling.logprobs = 1;
  TW_CHECK(same(run_core(core, {r})[1], solo(r)));
  TW_CHECK_EQ(tokens, 0);
}

// A third of the tokens are left to the host when the next step is underway already: what that step computed
// behind them is computed again, and the cache remembers none of it.
TW_TEST(crowds_equal_solo_runs_whatever_turns_out_while_steps_are_underway) {
  std::mt19937 random(3);
  int64_t tokens = 0, preemptions = 0, hits = 0, snapshot_hits = 0, aborted = 0, stopped = 0, rolled_back = 0;
  for (int round = 0; round < 48; ++round) {
    const int32_t blocks = 25 + static_cast<int32_t>(random() % 40);
    const bool states = round % 3 == 2;
    const int64_t groups = states ? round / 3 % 3 : 1 + round % 2;
    const int32_t window = round % 4 == 3 && groups > 0 ? 1 + static_cast<int32_t>(random() % 30) : 0;
    std::vector<Request> requests;
    for (int64_t id = 0; id < 25; ++id) requests.push_back(drawn_request(random, id, blocks));
    EngineOptions o = options(blocks, 6, 8 + static_cast<int32_t>(random() % 60), groups);
    o.prefix_cache = round % 8 != 0;
    o.state_snapshots = static_cast<int32_t>(random() % 12);
    o.max_chunk = round % 2 * 7;
    o.debug_preempt_every = round % 5;
    o.debug_seed = round;
    FakeBehaviour behaviour = ahead(&tokens);
    behaviour.fail_every = round % 6 == 5 ? 7 : 0;
    behaviour.groups = groups;
    behaviour.window = window;
    behaviour.states = states;
    EngineCore core(fake(behaviour), o);
    const Outcomes outcomes = run_with_aborts(core, requests, random);
    for (const Request& r : requests) {
      for (int32_t completion = 0; completion < r.sampling.n; ++completion) {
        const Outcome& outcome = outcomes.at(r.id + kNext * completion);
        const Outcome alone = solo_completion(r, completion, groups, window, states);
        if (outcome.last.finish == "abort") {
          TW_CHECK(begins_with(alone.tokens, outcome.tokens));
          ++aborted;
        } else {
          TW_CHECK(same(outcome, alone));
          stopped += outcome.last.finish == "stop";
        }
      }
    }
    const EngineStats stats = core.stats();
    for (const EngineStats::Blocks& group : stats.groups) TW_CHECK_EQ(group.used, 0);
    TW_CHECK_EQ(stats.used_state_slots, stats.state_snapshots);
    TW_CHECK_EQ(stats.finished + stats.aborted, 25);
    preemptions += stats.steps.preemptions;
    hits += stats.steps.prefix_hit_tokens;
    snapshot_hits += stats.steps.snapshot_hits;
    rolled_back += stats.steps.rolled_back;
  }
  TW_CHECK(tokens > 3000);
  TW_CHECK(preemptions > 200);
  TW_CHECK(hits > 2000 && snapshot_hits > 20);
  TW_CHECK(aborted > 100 && stopped > 50);
  TW_CHECK(rolled_back > 20);
}

TW_TEST_MAIN()
