// Guided requests whose grammar forces most tokens: they take fewer steps, and every token and logprob is
// that of the run alone that takes a step for each.
#include "runtime/core/engine/forced_tokens.h"

#include <algorithm>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/guided_cases.h"
#include "tests/cpp/scripted_proposer.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

int32_t forced_after(int32_t last, int32_t generated) {
  const uint32_t hash = static_cast<uint32_t>(last * 29 + generated * 13) * 2654435761u;
  return (hash >> 16) % 4 == 0 ? -1 : static_cast<int32_t>((hash >> 20) % kVocab);
}

MaskWords mask_of(int32_t last, int32_t generated) {
  const int32_t forced = forced_after(last, generated);
  return forced < 0 ? mask_after(last, generated) : only({forced});
}

// Knows the masks behind the published tokens and the forced ones after them, up to `sight` of these, as the
// thread that computes masks does. A wait publishes events, as the served engine does.
struct Foresight : Answering {
  explicit Foresight(uint32_t lag = 0, int32_t sight = 100) : lag_(lag), sight_(sight) {}

  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    if (lag_ > 0 && random_() % (lag_ + 1) != 0) return nullptr;
    int32_t before = last(id, completion), known = heard(id, completion);
    for (; known < generated; ++known) {
      if (known - heard(id, completion) >= sight_ || (before = forced_after(before, known)) < 0)
        return nullptr;
    }
    return std::make_shared<const MaskWords>(mask_of(before, generated));
  }
  bool forced_tokens(int64_t id, int32_t completion, int32_t generated, int32_t most,
                     std::vector<int32_t>* tokens) override {
    if (heard(id, completion) != generated || late) return false;
    int32_t before = last(id, completion);
    for (int32_t i = 0; i < std::min(most, sight_); ++i) {
      if ((before = forced_after(before, generated + i)) < 0) break;
      tokens->push_back(before);
    }
    return true;
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

  bool late = false;
  Outcomes outcomes;

 private:
  const uint32_t lag_;
  const int32_t sight_;
  std::mt19937 random_{6};
};

Outcomes run(EngineCore& core, Foresight& masks, const std::vector<Request>& requests) {
  for (const Request& r : requests) core.add(r, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    masks.publish(&events);
  }
  TW_CHECK_EQ(core.stats().used_blocks, 0);
  return masks.outcomes;
}

Request forced(Request r) {
  r.sampling.guided = true;
  r.first_mask = mask_of(-1, 0);
  return r;
}

Outcome alone(Request r, int32_t completion, int64_t groups, int32_t window) {
  if (r.sampling.seed) r.sampling.seed = completion_seed(*r.sampling.seed, completion);
  r.sampling.n = 1;
  if (completion > 0) r.sampling.prompt_logprobs = -1;
  EngineOptions o = options(100, 1, kMaxSeqLen, groups);
  o.prefix_cache = false;
  FakeBehaviour behaviour;
  behaviour.groups = groups;
  behaviour.window = window;
  Foresight masks;
  EngineCore core(fake(behaviour), o, &masks);
  Outcome outcome = run(core, masks, {r})[r.id];
  TW_CHECK_EQ(core.stats().forced_tokens, 0);
  return outcome;
}

}  // namespace

TW_TEST(crowds_that_jump_say_what_everybody_says_alone) {
  std::mt19937 random(31);
  int64_t saved = 0, preemptions = 0, rolled_back = 0, hits = 0, proposed = 0;
  for (int round = 0; round < 40; ++round) {
    const int32_t blocks = 25 + static_cast<int32_t>(random() % 40);
    const int64_t groups = 1 + round % 2;
    const int32_t window = round % 4 < 2 ? 0 : 1 + static_cast<int32_t>(random() % 30);
    std::vector<Request> requests;
    Script script;
    for (int64_t id = 0; id < 12; ++id) {
      Request r = random_request(random, id, 1 + static_cast<int32_t>(random() % 3), blocks);
      r.sampling.logprobs = static_cast<int32_t>(random() % 3) - 1;
      if (random() % 2) r.sampling.bad_words = {};
      requests.push_back(random() % 4 ? forced(r) : r);
    }
    EngineOptions o = options(blocks, 8, 8 + static_cast<int32_t>(random() % 60), groups);
    o.prefix_cache = round % 3 != 0;
    o.max_chunk = round % 5 == 1 ? 3 : 0;
    o.debug_preempt_every = round % 4;
    o.debug_seed = static_cast<uint64_t>(round);
    o.max_prompt_rows = 1 + static_cast<int32_t>(random() % 40);
    o.jump_forward = true;
    FakeBehaviour behaviour;
    behaviour.fail_every = round % 5 == 4 ? 3 : 0;
    behaviour.groups = groups;
    behaviour.window = window;
    Foresight masks(static_cast<uint32_t>(round % 3), round % 7 == 6 ? 1 : 100);
    std::unique_ptr<Proposer> proposer;
    if (round % 3 == 2) {
      for (const Request& r : requests)
        for (int32_t i = 0; i < r.sampling.n; ++i)
          script[{r.id, i}] = whole(
              r, r.sampling.guided ? alone(r, i, groups, window) : solo_completion(r, i, groups, window));
      proposer = std::make_unique<ScriptedProposer>(script, ScriptedBehaviour{2, 0}, round);
    }
    EngineCore core(fake(behaviour), o, &masks, std::move(proposer));
    Outcomes outcomes = run(core, masks, requests);
    for (const Request& r : requests) {
      for (int32_t i = 0; i < r.sampling.n; ++i) {
        const Outcome& outcome = outcomes[r.id + kNext * i];
        TW_CHECK(same(outcome, r.sampling.guided ? alone(r, i, groups, window)
                                                 : solo_completion(r, i, groups, window)));
        TW_CHECK(outcome.last.accepted_tokens <= outcome.last.draft_tokens);
      }
    }
    core.check();
    const EngineStats stats = core.stats();
    TW_CHECK(stats.steps.max_waste_slots < kBlockSize);
    saved += stats.forced_tokens;
    preemptions += stats.steps.preemptions;
    rolled_back += stats.steps.rolled_back;
    hits += stats.steps.prefix_hit_tokens;
    proposed += stats.speculation.proposed;
  }
  TW_CHECK(saved > 2000);
  TW_CHECK(preemptions > 30 && rolled_back > 20 && hits > 100 && proposed > 100);
}

// Each forced token but the first saves its step; without masks ahead, or without the option, none does.
TW_TEST(each_forced_token_saves_a_step) {
  Request r = forced(request(1, {1, 2, 3}, 40));
  r.sampling.ignore_eos = true;
  r.sampling.stop_token_ids = {};
  const Outcome expected = alone(r, 0, 1, 0);
  int64_t forced_tokens = 0;
  for (size_t i = 1; i + 1 < expected.tokens.size(); ++i)
    forced_tokens += forced_after(expected.tokens[i - 1], static_cast<int32_t>(i)) >= 0;
  TW_CHECK(forced_tokens > 20);
  for (int way = 0; way < 3; ++way) {
    EngineOptions o = options(60, 1, 64);
    o.jump_forward = way != 1;
    Foresight masks;
    masks.late = way == 2;
    masks.hasty = way == 2;
    EngineCore core(fake(), o, &masks);
    TW_CHECK(same(run(core, masks, {r})[1], expected));
    TW_CHECK_EQ(core.stats().forced_tokens, way == 0 ? forced_tokens : 0);
    TW_CHECK_EQ(core.stats().steps.steps,
                static_cast<int64_t>(expected.tokens.size()) - core.stats().forced_tokens);
    TW_CHECK_EQ(core.stats().speculation.proposed, 0);
    TW_CHECK(way != 2 || masks.waits >= core.stats().steps.steps - 2);  // it looked for them before each step
  }
}

// The room of a step for rows and tokens is divided, and what has none waits for the next step.
TW_TEST(jumps_keep_to_the_rows_and_tokens_of_a_step) {
  Request r = forced(request(1, {1, 2, 3}, 40));
  r.sampling.ignore_eos = true;
  r.sampling.stop_token_ids = {};
  const Outcome expected = alone(r, 0, 1, 0);
  int64_t least = 0;
  for (int32_t rows : {1, 2, 40}) {
    EngineOptions o = options(60, 4, rows == 2 ? 6 : 64);
    o.jump_forward = true;
    o.max_prompt_rows = rows;
    Foresight masks;
    EngineCore core(fake(), o, &masks);
    std::vector<Request> requests;
    for (int64_t id = 1; id <= 4; ++id) {
      requests.push_back(r);
      requests.back().id = id;
    }
    Outcomes outcomes = run(core, masks, requests);
    for (int64_t id = 1; id <= 4; ++id) TW_CHECK(outcomes[id].tokens == expected.tokens);
    TW_CHECK(core.stats().forced_tokens > least);
    least = core.stats().forced_tokens;
  }
}

// Whoever ends while masks are waited for before a step leaves the others, or nobody.
TW_TEST(what_ends_before_a_step_is_not_computed) {
  for (bool all : {false, true}) {
    EngineOptions o = options(60, 4, 64);
    o.jump_forward = true;
    Foresight masks;
    EngineCore core(fake(), o, &masks);
    core.add(forced(request(1, {1, 2, 3}, 9)), Clock::now());
    if (!all) core.add(request(2, {4, 5}, 5), Clock::now());
    std::vector<Event> events;
    core.step(&events);
    masks.hear(events);
    masks.late = true;
    masks.on_wait = [&](std::vector<Event>* so_far) { core.end(1, nullptr, so_far); };
    core.step(&events);
    TW_CHECK_EQ(masks.waits, 1);
    TW_CHECK_EQ(core.idle(), all);
    while (!core.idle()) core.step(&events);
    TW_CHECK_EQ(core.stats().aborted, 1);
    TW_CHECK_EQ(core.stats().finished, all ? 0 : 1);
    TW_CHECK_EQ(core.stats().used_blocks, 0);
  }
}

TW_TEST(the_mailbox_knows_forced_tokens) {
  TokenMasks masks;
  std::vector<int32_t> tokens;
  TW_CHECK(!masks.forced(1, 0, 0, 9, &tokens));
  masks.open(1, 1, {0b100, 0});
  masks.put(1, 0, 1, {0, 0b10});
  masks.put(1, 0, 2, {0b1, 0b10});
  masks.put(1, 0, 4, {0b1, 0});
  TW_CHECK(masks.forced(1, 0, 0, 9, &tokens));
  TW_CHECK(tokens == (std::vector<int32_t>{2, 33}));
  tokens.clear();
  TW_CHECK(masks.forced(1, 0, 0, 1, &tokens));
  TW_CHECK(tokens == std::vector<int32_t>{2});
  tokens.clear();
  TW_CHECK(masks.forced(1, 0, 2, 9, &tokens));   // a choice
  TW_CHECK(!masks.forced(1, 0, 3, 9, &tokens));  // not there
  TW_CHECK(tokens.empty());
  TW_CHECK_EQ((*masks.take(1, 0, 1))[1], 0b10u);  // what was looked at can be taken
}

TW_TEST_MAIN()
