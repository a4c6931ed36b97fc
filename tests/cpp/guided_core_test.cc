// Guided requests in EngineCore, without a thread: whose mask comes when must not change a token, and whoever
// ends while a mask is waited for takes nobody along.
#include <set>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/guided_cases.h"

using namespace tensorwright;
using namespace tw_test;

// One mask for all tokens is a logit bias of -inf on the others.
TW_TEST(a_mask_is_a_ban_of_the_other_tokens) {
  struct Constant : MaskSource {
    MaskWords words;
    SharedMask take_mask(int64_t, int32_t, int32_t) override {
      return std::make_shared<const MaskWords>(words);
    }
    bool wait_for_masks(Clock::time_point, std::vector<Event>*) override {
      throw std::logic_error("nothing is missing");
    }
  };
  for (std::vector<int32_t> tokens :
       {std::vector<int32_t>{0, 31, 32, 49}, {17}, {1, 2, 3, 5, 8, 13, 21, 34}}) {
    Constant masks;
    masks.words = only(tokens);
    masks.words.back() |= 0xfffc0000;  // bits past the vocabulary
    for (double temperature : {0.0, 0.7}) {
      Request r = request(1, {1, 2, 3}, 20);
      r.sampling.temperature = temperature;
      r.sampling.seed = 3;
      r.sampling.top_p = 0.9;
      r.sampling.logprobs = 2;
      Request banned = r;
      for (int32_t token = 0; token < kVocab; ++token) {
        if (!allowed(masks.words, token))
          banned.sampling.logit_bias.emplace_back(token, -std::numeric_limits<double>::infinity());
      }
      r.sampling.guided = true;
      r.first_mask = masks.words;
      EngineCore core(fake(), options(60, 1, 64), &masks);
      Outcome outcome = run_core(core, {r})[1];
      TW_CHECK(same(outcome, solo(banned)));  // logprobs too: of the raw logits
      TW_CHECK_EQ(outcome.tokens.size(), 20u);
    }
  }
}

TW_TEST(guided_crowds_equal_solo_runs_whenever_masks_come) {
  std::mt19937 random(21);
  int64_t preemptions = 0, forks = 0, waits = 0, guided_tokens = 0, sat_out = 0;
  for (int round = 0; round < 16; ++round) {
    std::vector<Request> requests;
    int32_t blocks = 25 + static_cast<int32_t>(random() % 40);
    for (int64_t id = 0; id < 20; ++id) {
      Request r = random_request(random, id, 1 + static_cast<int32_t>(random() % 4), blocks);
      requests.push_back(random() % 3 ? guided(r) : r);
    }
    int64_t groups = 1 + round % 2;
    int32_t window = round < 8 ? 0 : 1 + static_cast<int32_t>(random() % 30);
    EngineOptions o = options(blocks, 8, 8 + static_cast<int32_t>(random() % 60), groups);
    o.prefix_cache = round % 3 != 0;
    o.debug_preempt_every = round % 4;
    o.debug_seed = round;
    FakeBehaviour behaviour;
    behaviour.fail_every = round % 5 == 4 ? 3 : 0;
    behaviour.groups = groups;
    behaviour.window = window;
    Answering masks(static_cast<uint32_t>(round % 4));
    EngineCore core(fake(behaviour), o, &masks);
    Outcomes outcomes = run_guided(core, masks, requests);
    for (const Request& r : requests) {
      for (int32_t completion = 0; completion < r.sampling.n; ++completion) {
        const Outcome& outcome = outcomes[r.id + kNext * completion];
        TW_CHECK(same(outcome, r.sampling.guided ? guided_alone(r, completion, groups, window)
                                                 : solo_completion(r, completion, groups, window)));
        TW_CHECK(outcome.last.finish == "stop" || outcome.last.finish == "length");
        if (!r.sampling.guided) continue;
        TW_CHECK(obeys(outcome));
        guided_tokens += static_cast<int64_t>(outcome.tokens.size());
        forks += completion > 0;
      }
    }
    preemptions += core.stats().steps.preemptions;
    waits += masks.waits;
    sat_out += core.stats().sat_out;
    TW_CHECK_EQ(masks.waits > 0, round % 4 > 0);
  }
  TW_CHECK(preemptions > 10);
  TW_CHECK(forks > 50);
  TW_CHECK(waits > 500);
  TW_CHECK(sat_out > 500);
  TW_CHECK(guided_tokens > 2000);
}

// Nothing left, by the mask alone or by mask and bans: the request's own error, all its completions, nobody
// else.
TW_TEST(a_mask_that_leaves_nothing_costs_its_request) {
  for (bool banned : {false, true}) {
    struct Strict : Answering {
      using Answering::Answering;
      bool banned = false;
      SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
        SharedMask mask = Answering::take_mask(id, completion, generated);
        if (id != 2 || completion != 1 || generated < 3) return mask;
        return std::make_shared<const MaskWords>(
            only(banned ? std::vector<int32_t>{9} : std::vector<int32_t>{}));
      }
    } masks(banned ? 3 : 0);  // the other completion's row may still wait when this one fails
    masks.banned = banned;
    EngineCore core(fake(), options(60, 8, 64), &masks);
    std::vector<Request> requests;
    for (int64_t id = 0; id < 4; ++id) {
      Request r = request(id, {7, 8, static_cast<int32_t>(id)}, 10);
      requests.push_back(id % 2 ? r : guided(r));
    }
    requests[2].sampling.n = 2;
    requests[2].sampling.bad_words = {{9}};
    Outcomes outcomes = run_guided(core, masks, requests);
    for (int64_t id : {0, 1, 3}) {
      TW_CHECK(same(outcomes[id], id % 2 ? solo(requests[id]) : guided_alone(requests[id])));
    }
    TW_CHECK_EQ(outcomes[2 + kNext].tokens.size(), 3u);
    for (int64_t at : {int64_t{2}, 2 + kNext}) {
      TW_CHECK(outcomes[at].last.finish == "error");
      TW_CHECK(outcomes[at].last.error_type == "InvalidRequestError");
      TW_CHECK(outcomes[at].last.error.find("guided decoding") != std::string::npos);
    }
    TW_CHECK_EQ(core.stats().failed, 1);
    TW_CHECK_EQ(core.stats().finished, 3);
  }
}

namespace {

// Answers for nobody after the first token.
struct Silent : Answering {
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    return generated > 0 ? nullptr : Answering::take_mask(id, completion, generated);
  }
};

}  // namespace

// The rows without a grammar do not wait; what ends the wait ends its rows and nothing else.
TW_TEST(rows_are_given_up_then_and_there) {
  for (const char* kind : {"end", "one", "expire", "all"}) {
    const std::string how = kind;
    Silent masks;
    EngineCore core(fake(), options(60, 8, 64), &masks);
    Request waiting = guided(request(1, {1, 2, 3}, 9));
    waiting.sampling.n = 3;
    if (how == "expire") waiting.sampling.timeout_s = 1000;
    core.add(waiting, Clock::now());
    core.add(request(2, {1, 2, 4}, 9), Clock::now());
    std::vector<Event> events;
    core.step(&events);
    TW_CHECK_EQ(events.size(), 4u);
    TW_CHECK_EQ(core.next_deadline() < Clock::time_point::max(), how == "expire");
    masks.hear(events);
    events.clear();
    masks.on_wait = [&](std::vector<Event>* so_far) {
      if (masks.waits == 1) {  // the other's token is there already
        TW_CHECK_EQ(so_far->size(), 1u);
        TW_CHECK(so_far->at(0).request_id == 2 && so_far->at(0).tokens.size() == 1);
        core.add(request(3, {5}, 2), Clock::now());  // and others may come meanwhile
      }
      if (how == "end") core.end(1, nullptr, so_far);
      if (how == "one") core.end_completion(1, 3 - masks.waits, so_far);
      if (how == "expire") core.expire(Clock::now() + std::chrono::seconds(2000), so_far);
      if (how == "all") core.end_all(so_far);
    };
    core.step(&events);
    TW_CHECK_EQ(masks.waits, how == "one" ? 3 : 1);
    auto ended = [&](const char* finish) {
      return std::ranges::count_if(events, [&](const Event& event) { return event.finish == finish; });
    };
    TW_CHECK_EQ(ended(how == "expire" ? "timeout" : "abort"), how == "all" ? 5 : 3);
    Outcomes outcomes;
    while (!core.idle()) core.step(&events);
    collect(std::move(events), &outcomes);
    TW_CHECK_EQ(core.stats().used_blocks, 0);
    if (how == "all") continue;
    Outcome rest = solo(request(2, {1, 2, 4}, 9));
    TW_CHECK(std::ranges::equal(outcomes[2].tokens, std::span(rest.tokens).subspan(1)));
    TW_CHECK(same(outcomes[3], solo(request(3, {5}, 2))));
  }
}

namespace {

// Answers for all but those in `silent`, once they have a token.
struct Choosy : Answering {
  std::set<int64_t> silent;
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    if (generated > 0 && silent.contains(id)) return nullptr;
    return Answering::take_mask(id, completion, generated);
  }
};

// One step: what it told goes to the masks and to `outcomes`.
void step(EngineCore& core, Answering& masks, Outcomes* outcomes) {
  std::vector<Event> events;
  core.step(&events);
  masks.hear(events);
  collect(std::move(events), outcomes);
}

}  // namespace

// The others are done before the mask comes, as if they had been alone; then it is as if it had come at once.
TW_TEST(who_has_no_mask_sits_out) {
  for (int32_t every : {0, 3}) {
    EngineOptions o = options(60, 8, 64);
    o.debug_preempt_every = every;
    Choosy masks;
    masks.hasty = true;
    masks.silent = {1};
    EngineCore core(fake(), o, &masks);
    std::vector<Request> requests = {guided(request(1, {1, 2, 3}, 30)), request(2, {1, 2, 4}, 40),
                                     guided(request(3, {1, 2, 3}, 25))};
    requests[0].sampling.n = 3;
    requests[0].sampling.temperature = 1;
    requests[0].sampling.seed = 4;
    requests[0].sampling.logprobs = 2;
    Outcomes outcomes;
    for (const Request& r : requests) core.add(r, Clock::now());
    for (int steps = 0; steps < 45; ++steps) step(core, masks, &outcomes);
    TW_CHECK(same(outcomes[2], solo(requests[1])));
    TW_CHECK(same(outcomes[3], guided_alone(requests[2])));
    TW_CHECK_EQ(core.stats().finished, 2);
    TW_CHECK_EQ(core.stats().running, 3);
    TW_CHECK(core.stats().used_blocks > 0);  // theirs
    for (int32_t completion : {0, 1, 2}) TW_CHECK_EQ(outcomes[1 + kNext * completion].tokens.size(), 1u);
    int waits = masks.endless_waits;
    for (int i = 0; i < 5; ++i) step(core, masks, &outcomes);
    TW_CHECK_EQ(masks.endless_waits, waits + 5);  // no step without a wait
    if (every == 0) TW_CHECK_EQ(core.stats().sat_out, 3);
    masks.silent = {};
    while (!core.idle()) step(core, masks, &outcomes);
    for (int32_t completion : {0, 1, 2})
      TW_CHECK(same(outcomes[1 + kNext * completion], guided_alone(requests[0], completion)));
    TW_CHECK_EQ(core.stats().used_blocks, 0);
  }
}

// The blocks of who sits out are taken where nobody else could go on; it computes its row again and is as if
// it had been alone.
TW_TEST(who_sits_out_gives_its_blocks_to_who_cannot_go_on) {
  for (bool prefix_cache : {false, true}) {
    EngineOptions o = options(12, 8, 64);
    o.prefix_cache = prefix_cache;
    Choosy masks;
    masks.hasty = true;
    masks.silent = {1, 2};
    EngineCore core(fake(), o, &masks);
    std::vector<Request> requests;
    for (int64_t id : {1, 2}) {
      std::vector<int32_t> prompt(16, static_cast<int32_t>(id));
      requests.push_back(guided(request(id, prompt, 12)));
    }
    requests.push_back(request(3, {5, 6, 7}, 44));  // needs all blocks but one
    Outcomes outcomes;
    for (const Request& r : requests) core.add(r, Clock::now());
    for (int steps = 0; steps < 60; ++steps) step(core, masks, &outcomes);
    TW_CHECK(same(outcomes[3], solo(requests[2])));
    TW_CHECK(core.stats().steps.preemptions >= 2);
    TW_CHECK_EQ(core.stats().running, 2);
    masks.silent = {};
    while (!core.idle()) step(core, masks, &outcomes);
    for (int64_t id : {1, 2}) TW_CHECK(same(outcomes[id], guided_alone(requests[id - 1])));
    TW_CHECK_EQ(core.stats().used_blocks, 0);
  }
}

TW_TEST(a_guided_request_needs_a_source_of_masks) {
  EngineCore core(fake(), options(60, 8, 64));
  TW_CHECK_THROWS(core.add(guided(request(1, {1}, 2)), Clock::now()), std::logic_error);
  TW_CHECK(core.idle());
}

TW_TEST(masks_are_checked_at_the_door) {
  EngineCore core(fake(), options(60, 8, 64));
  auto validate = [&](Request r) { validate_request(r, core.facts(), core.groups(), 8); };
  Request r = guided(request(1, {1}, 2));
  validate(r);
  r.first_mask.push_back(0);
  TW_CHECK_ERROR(validate(r), "InvalidRequestError");
  r.first_mask.clear();
  TW_CHECK_ERROR(validate(r), "InvalidRequestError");
  r = guided(request(1, {1}, 2));
  r.sampling.guided = false;
  TW_CHECK_ERROR(validate(r), "InvalidRequestError");
}

TW_TEST_MAIN()
