// Speculation in EngineCore: whatever is proposed, every request says what it says alone, to the last bit of
// its logprobs, and gives back what it took.
#include <array>
#include <chrono>
#include <memory>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/guided_cases.h"
#include "tests/cpp/scripted_proposer.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// Answers with a mask only once the engine has published the tokens before it, as the real consumer does. A
// wait publishes events, as the served engine does.
class LateAnswering : public Answering {
 public:
  using Answering::Answering;
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    if (heard(id, completion) != generated) return nullptr;
    return Answering::take_mask(id, completion, generated);
  }
  bool wait_for_masks(Clock::time_point until, std::vector<Event>* events) override {
    publish(events);
    return Answering::wait_for_masks(until, events);
  }
  void publish(std::vector<Event>* events) {
    hear(*events);
    collect(std::move(*events), &outcomes);
    events->clear();
  }

  Outcomes outcomes;
};

void run(EngineCore& core, LateAnswering& masks, const std::vector<Request>& requests) {
  for (const Request& r : requests) core.add(r, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    masks.publish(&events);
  }
  TW_CHECK_EQ(core.stats().used_blocks, 0);
}

Outcome alone(const Request& r, int32_t completion, int64_t groups, int32_t window) {
  return r.sampling.guided ? guided_alone(r, completion, groups, window)
                           : solo_completion(r, completion, groups, window);
}

struct Sums {
  int64_t proposed = 0, accepted = 0, preemptions = 0, rolled_back = 0, failures = 0, guided = 0, hits = 0;
};

// Runs one crowd under the conditions of a round, and compares everybody with what they say alone.
void run_crowd(int round, std::mt19937& random, Sums* sums) {
  const int32_t blocks = 25 + static_cast<int32_t>(random() % 40);
  const int64_t groups = 1 + round % 2;
  const int32_t window = round % 4 < 2 ? 0 : 1 + static_cast<int32_t>(random() % 30);
  std::vector<Request> requests;
  Script script;
  for (int64_t id = 0; id < 20; ++id) {
    Request r = random_request(random, id, 1 + static_cast<int32_t>(random() % 3), blocks);
    requests.push_back(random() % 4 ? r : guided(r));
    for (int32_t i = 0; i < r.sampling.n; ++i)
      script[{id, i}] = whole(r, alone(requests.back(), i, groups, window));
  }
  EngineOptions o = options(blocks, 8, 8 + static_cast<int32_t>(random() % 60), groups);
  o.prefix_cache = round % 3 != 0;
  o.debug_preempt_every = round % 5;
  o.debug_seed = static_cast<uint64_t>(round);
  o.speculation.tokens = round % 2 ? 1 + round % kMaxDraft : 0;
  o.speculation.max_rows = 1 + static_cast<int32_t>(random() % 40);
  FakeBehaviour behaviour;
  behaviour.fail_every = round % 5 == 4 ? 3 : 0;
  behaviour.groups = groups;
  behaviour.window = window;
  ScriptedBehaviour scripted{std::array{0u, 2u, 5u, 1u}[static_cast<size_t>(round) % 4],
                             round % 3 == 1 ? 4u : 0u};
  LateAnswering masks(static_cast<uint32_t>(round % 3));
  EngineCore core(fake(behaviour), o, &masks, std::make_unique<ScriptedProposer>(script, scripted, round));
  run(core, masks, requests);
  for (const Request& r : requests) {
    for (int32_t i = 0; i < r.sampling.n; ++i) {
      const Outcome& outcome = masks.outcomes[r.id + kNext * i];
      TW_CHECK(same(outcome, alone(r, i, groups, window)));
      TW_CHECK(outcome.last.accepted_tokens <= outcome.last.draft_tokens);
      sums->guided += r.sampling.guided ? outcome.last.accepted_tokens : 0;
    }
  }
  core.check();
  const EngineStats stats = core.stats();
  TW_CHECK(stats.steps.max_waste_slots < kBlockSize);
  TW_CHECK_EQ(stats.finished, 20);
  if (scripted.wrong_in == 1) TW_CHECK_EQ(stats.speculation.accepted, 0);
  sums->proposed += stats.speculation.proposed;
  sums->accepted += stats.speculation.accepted;
  sums->preemptions += stats.steps.preemptions;
  sums->rolled_back += stats.steps.rolled_back;
  sums->failures += stats.speculation.failures;
  sums->hits += stats.steps.prefix_hit_tokens;
}

}  // namespace

TW_TEST(crowds_with_drafts_say_what_everybody_says_alone) {
  std::mt19937 random(5);
  Sums sums;
  for (int round = 0; round < 60; ++round) run_crowd(round, random, &sums);
  TW_CHECK(sums.proposed > 5000 && sums.accepted > 2000 && sums.guided > 50);
  TW_CHECK(sums.preemptions > 50 && sums.rolled_back > 50 && sums.failures > 50 && sums.hits > 500);
}

// A right draft of three tokens makes four tokens a step, and a wrong one costs none.
TW_TEST(steps_are_saved_by_right_drafts_alone) {
  Request r = request(1, {1, 2, 3}, 40);
  const Outcome expected = solo(r);
  for (const bool right : {true, false}) {
    EngineOptions o = options(60, 1, 64);
    o.speculation.tokens = 3;
    ScriptedBehaviour scripted{right ? 0u : 1u, 0u, false};
    auto proposer = std::make_unique<ScriptedProposer>(Script{{{1, 0}, whole(r, expected)}}, scripted);
    const ScriptedProposer& watched = *proposer;
    EngineCore core(fake(), o, nullptr, std::move(proposer));
    const Outcome outcome = run_core(core, {r})[1];
    TW_CHECK(same(outcome, expected));
    TW_CHECK_EQ(core.stats().steps.steps, right ? 11 : 40);  // the prompt, then 4 tokens a step, or 1
    TW_CHECK_EQ(outcome.last.accepted_tokens, right ? 29 : 0);
    TW_CHECK_EQ(core.stats().speculation.accepted_at[2], right ? 9 : 0);
    TW_CHECK_EQ(watched.forgotten.size(), 1u);
  }
}

// What was proposed and not drawn must not be found by later prompts: all of it is wrong here.
TW_TEST(the_prefix_cache_remembers_no_token_that_was_not_drawn) {
  Request r = request(1, std::vector<int32_t>(9, 3), 30);
  const Outcome expected = solo(r);
  Script script{{{1, 0}, whole(r, expected)}};
  EngineOptions o = options(60, 2, 64);
  o.speculation.tokens = 12;  // three blocks
  EngineCore core(fake(), o, nullptr,
                  std::make_unique<ScriptedProposer>(script, ScriptedBehaviour{1, 0, false}));
  TW_CHECK(same(run_core(core, {r})[1], expected));
  // The wrong tokens are those of the script, each one more.
  std::vector<int32_t> wrong = whole(r, expected);
  for (size_t i = r.prompt.size() + 1; i < wrong.size(); ++i) wrong[i] = (wrong[i] + 1) % kVocab;
  Request other = request(1, std::vector<int32_t>(wrong.begin(), wrong.begin() + 25), 5);
  const int64_t before = core.stats().steps.prefix_hit_tokens;
  Outcomes outcomes;
  core.add(other, Clock::now());
  std::vector<Event> events;
  core.step(&events);
  TW_CHECK_EQ(core.stats().steps.prefix_hit_tokens - before, 8);  // the prompt's two full blocks, no more
  core.end_all(&events);
}

TW_TEST(a_model_with_states_is_refused) {
  TW_CHECK_ERROR(EngineCore(fake(with_states(1)), options(60, 2, 64), nullptr,
                            std::make_unique<ScriptedProposer>(Script{}, ScriptedBehaviour{})),
                 "InvalidOptionError");
}

namespace {

// Proposes slowly and wrongly, and keeps what it is told of the worth of going on. The clock of the thread is
// held: proposals take 300 microseconds of it.
class SlowProposer : public ScriptedProposer {
 public:
  SlowProposer(Script script, bool* always_worth)
      : ScriptedProposer(std::move(script), {.wrong_in = 1, .short_ones = false}),
        always_worth_(always_worth) {}
  void prepare(const StepPlan& plan, const Worth& worth) override {
    for (const PlannedChunk& chunk : plan.chunks) *always_worth_ = *always_worth_ && worth(*chunk.sequence);
  }
  void propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) override {
    pass(300);
    ScriptedProposer::propose(wishes, drafts);
  }

 private:
  static void pass(int microseconds) {
    Clock::HeldHere::set(Clock::now() + std::chrono::microseconds(microseconds));
  }

  const Clock::HeldHere held_;
  bool* const always_worth_;
};

}  // namespace

TW_TEST(a_fixed_number_is_proposed_though_it_does_not_pay) {
  for (const int32_t fixed : {0, 2}) {
    EngineOptions o = options(100, 1, 64);
    o.speculation.tokens = fixed;
    std::vector<Request> requests;
    Script script;
    for (int64_t id = 0; id < 20; ++id) {
      requests.push_back(request(id, {1, 2, 3}, 12));
      script[{id, 0}] = whole(requests.back(), solo_completion(requests.back(), 0));
    }
    bool always_worth = true;
    EngineCore core(fake({.held_us = 100}), o, nullptr,
                    std::make_unique<SlowProposer>(script, &always_worth));
    for (const Request& r : requests) run_core(core, {r});
    TW_CHECK_EQ(always_worth, fixed > 0);
  }
}

TW_TEST_MAIN()
