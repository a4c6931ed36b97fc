// EngineCore over a fake model that sees every addressing mistake: crowds equal solo runs, errors stay where
// they arose. It has more than 500 lines because all of its tests share one crowd of requests and its fakes.
#include "runtime/core/engine/engine_core.h"

#include <functional>
#include <vector>

#include "runtime/core/base/invariants.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

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

// The draw depends on the position in the sequence, not on where the prompt ends.
TW_TEST(a_prompt_that_ends_later_goes_on_the_same) {
  Request r = request(1, {1, 2, 3}, 10);
  r.sampling.temperature = 1;
  r.sampling.seed = 5;
  Outcome whole = solo(r);
  for (size_t cut = 1; cut < 9; ++cut) {
    Request later = r;
    later.prompt.insert(later.prompt.end(), whole.tokens.begin(),
                        whole.tokens.begin() + static_cast<int>(cut));
    later.sampling.max_tokens = 10 - static_cast<int32_t>(cut);
    Outcome rest = solo(later);
    TW_CHECK(
        std::equal(rest.tokens.begin(), rest.tokens.end(), whole.tokens.begin() + static_cast<int>(cut)));
  }
}

// A pooled request never lacks blocks once it runs, so nothing but a forced preemption, or a step that fails
// in company, makes it begin again. It must add no row twice and leave none out.
TW_TEST(pooled_rows_are_those_of_a_run_alone_though_prompts_begin_again) {
  std::mt19937 random(5);
  int64_t preemptions = 0, kept = 0;
  for (int round = 0; round < 24; ++round) {
    FakeBehaviour behaviour;
    behaviour.groups = 1 + round % 2;
    behaviour.window = round % 4 == 1 ? 9 : 0;
    behaviour.fail_every = round % 5 == 4 ? 3 : 0;
    std::vector<Request> requests;
    for (int64_t id = 0; id < 12; ++id) {
      Request r = request(
          id, numbers(static_cast<int32_t>(random() % 3), 1 + static_cast<int32_t>(random() % 90)), 1);
      r.sampling.pooling = random() % 2 ? Pooling::mean : Pooling::last;
      if (random() % 3 == 0) r.sampling.pooled_columns = {7, 0, 3};
      requests.push_back(std::move(r));
    }
    EngineOptions o = options(40, 4, 16, behaviour.groups);
    o.debug_preempt_every = 1 + round % 3;
    o.debug_seed = static_cast<uint64_t>(round);
    o.max_chunk = 1 + static_cast<int32_t>(random() % 9);
    o.prefix_cache = round % 3 != 0;
    EngineCore core(fake(behaviour), o);
    const Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      const Outcome alone = solo(r, behaviour.groups, behaviour.window);
      TW_CHECK_EQ(alone.last.finish, std::string("stop"));
      TW_CHECK_EQ(alone.last.pooled.size(), r.sampling.pooled_columns.empty() ? size_t{kVocab} : size_t{3});
      TW_CHECK(outcomes.at(r.id).last.pooled == alone.last.pooled);
      TW_CHECK(outcomes.at(r.id).tokens.empty());
    }
    preemptions += core.stats().steps.preemptions;
    kept += core.stats().steps.resumed_kept_tokens;
  }
  TW_CHECK(preemptions > 100);
  TW_CHECK(kept > 100);
}

TW_TEST(crowds_equal_solo_runs_under_every_condition) {
  std::mt19937 random(11);
  int64_t preemptions = 0, hits = 0, evictions = 0, forks = 0;
  int64_t snapshot_hits = 0, drawn = 0;
  SnapshotStats snapshots;
  for (int round = 0; round < 40; ++round) {
    std::vector<Request> requests;
    int32_t blocks = 25 + static_cast<int32_t>(random() % 40);
    for (int64_t id = 0; id < 25; ++id)
      requests.push_back(random_request(random, id, 1 + static_cast<int32_t>(random() % 4), blocks));
    const bool states = round >= 24;
    const int64_t groups = states ? round % 3 : 1 + round % 2;
    const int32_t window = round < 12 || groups == 0 ? 0 : 1 + static_cast<int32_t>(random() % 30);
    const bool chunked = window > 0 && round % 4 < 2;
    // Sink tokens end within the first three blocks.
    const int32_t sink_tokens = window > 0 && !chunked ? static_cast<int32_t>(random() % 12) : 0;
    EngineOptions o = options(blocks, 8, 8 + static_cast<int32_t>(random() % 60), groups);
    o.prefix_cache = states ? round % 8 != 0 : round % 3 != 0;
    o.state_snapshots = static_cast<int32_t>(random() % 12);
    o.max_chunk = round % 2 * 7;
    o.debug_preempt_every = round % 4;
    o.debug_seed = round;
    o.max_prompt_rows = 1 + static_cast<int32_t>(random() % 20);
    FakeBehaviour behaviour;
    behaviour.fail_every = round % 5 == 4 ? 3 : 0;  // and steps that fail in company
    behaviour.groups = groups;
    behaviour.window = window;
    behaviour.chunked = chunked;
    behaviour.sink_tokens = sink_tokens;
    behaviour.states = states;
    behaviour.draws = round % 2 == 1;
    behaviour.ahead = round % 4 == 3;
    behaviour.drawn = &drawn;
    EngineCore core(fake(behaviour), o);
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      for (int32_t completion = 0; completion < r.sampling.n; ++completion) {
        const Outcome& outcome = outcomes[r.id + kNext * completion];
        TW_CHECK(same(outcome, solo_completion(r, completion, groups, window, states, chunked, sink_tokens)));
        TW_CHECK(outcome.last.finish == "stop" || outcome.last.finish == "length");
        TW_CHECK_EQ(outcome.logprobs.size(), r.sampling.logprobs < 0 ? 0 : outcome.tokens.size());
        size_t told = r.sampling.prompt_logprobs < 0 || completion > 0 ? 0 : r.prompt.size() - 1;
        TW_CHECK_EQ(outcome.prompt_logprobs.size(), told);
        forks += completion > 0;
      }
    }
    preemptions += core.stats().steps.preemptions;
    hits += core.stats().steps.prefix_hit_tokens;
    evictions += core.stats().evictions;
    snapshot_hits += core.stats().steps.snapshot_hits;
    snapshots.taken += core.stats().snapshots.taken;
    snapshots.evicted += core.stats().snapshots.evicted;
    TW_CHECK_EQ(core.stats().finished, 25);
    TW_CHECK_EQ(core.stats().steps.rolled_back > 0, behaviour.fail_every > 0);
  }
  TW_CHECK(preemptions > 20);
  TW_CHECK(hits > 500);
  TW_CHECK(evictions > 100);
  TW_CHECK(forks > 100);
  TW_CHECK(snapshot_hits > 50 && snapshots.taken > 500 && snapshots.evicted > 100);
  TW_CHECK(drawn > 500);
}

// An executor draws what the request leaves to it. A row that it is not sure of, or that has no distribution,
// and every parameter that it does not know, is the sampler's.
TW_TEST(an_executor_draws_only_what_a_request_leaves_to_it) {
  const auto drawn_of = [](const std::function<void(Sampling&)>& change) {
    int64_t drawn = 0;
    FakeBehaviour behaviour;
    behaviour.draws = true;
    behaviour.drawn = &drawn;
    EngineCore core(fake(behaviour), options(60, 8, 64));
    Request r = request(1, {1, 2, 3, 1}, 9);
    r.sampling.temperature = 0.8;
    r.sampling.seed = 4;
    change(r.sampling);
    Outcomes outcomes = run_core(core, {r});
    for (int32_t i = 0; i < r.sampling.n; ++i) TW_CHECK(same(outcomes[1 + kNext * i], solo_completion(r, i)));
    return drawn;
  };
  TW_CHECK_EQ(drawn_of([](Sampling&) {}), 6);
  TW_CHECK_EQ(drawn_of([](Sampling& s) { s.temperature = 0; }), 6);
  TW_CHECK_EQ(drawn_of([](Sampling& s) { s.top_k = 7, s.top_p = 0.8, s.min_p = 0.1; }), 6);
  TW_CHECK_EQ(drawn_of([](Sampling& s) { s.temperature = 0, s.typical_p = 0.5; }), 6);  // greedy all the same
  TW_CHECK_EQ(drawn_of([](Sampling& s) { s.n = 2; }),
              11);  // of 17 rows; the first is shared, so it is not asked for
  TW_CHECK_EQ(drawn_of([](Sampling& s) { s.min_tokens = 3, s.eos_token_ids = {5}; }),
              4);  // from the fourth on
  for (const auto& change : std::vector<std::function<void(Sampling&)>>{
           [](Sampling& s) { s.logprobs = 0; },
           [](Sampling& s) { s.typical_p = 0.9; },
           [](Sampling& s) { s.xtc_probability = 0.5; },
           [](Sampling& s) { s.repetition_penalty = 1.1; },
           [](Sampling& s) { s.presence_penalty = 0.1; },
           [](Sampling& s) { s.frequency_penalty = 0.1; },
           [](Sampling& s) { s.dry_multiplier = 0.8; },
           [](Sampling& s) { s.no_repeat_ngram_size = 2; },
           [](Sampling& s) { s.logit_bias = {{3, 1.0}}; },
           [](Sampling& s) { s.bad_words = BannedWords({{7}}); },
       })
    TW_CHECK_EQ(drawn_of(change), 0);
}

// The fake model notices each copy of states that is not made: for a fork, or for a prefix.
TW_TEST(copies_of_states_that_are_lost_are_noticed) {
  for (const bool forks : {false, true}) {
    for (const bool lost : {false, true}) {
      FakeBehaviour behaviour = with_states(0);
      behaviour.lose_states = lost;
      EngineOptions o = options(60, 8, 64);
      o.state_snapshots = 8;
      EngineCore core(fake(behaviour), o);
      Request r = request(1, std::vector<int32_t>(18, 3), 6);
      r.sampling.n = forks ? 2 : 1;
      bool right = true;
      for (int turn = 0; turn < (forks ? 1 : 2); ++turn) {  // the second finds the first one's prompt
        Outcomes outcomes = run_core(core, {r});
        for (int32_t i = 0; i < r.sampling.n; ++i)
          right &= same(outcomes[1 + kNext * i], solo_completion(r, i, 0, 0, true));
      }
      TW_CHECK_EQ(right, !lost);
    }
  }
}

// Steps of more than one sequence always fail, each time in the middle: the states of all are spoilt, and yet
// everybody gets on.
TW_TEST(steps_that_always_fail_in_company_hold_nobody_up) {
  FakeBehaviour behaviour = with_states(1);
  behaviour.fail_every = 1;
  for (int32_t snapshots : {0, 8}) {
    EngineOptions o = options(200, 4, 8);  // a prompt takes several steps
    o.state_snapshots = snapshots;
    EngineCore core(fake(behaviour), o);
    std::vector<Request> requests;
    for (int64_t id = 0; id < 4; ++id)
      requests.push_back(request(id, std::vector<int32_t>(30, static_cast<int32_t>(id)), 10));
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) TW_CHECK(same(outcomes[r.id], solo(r, 1, 0, true)));
    TW_CHECK(core.stats().steps.rolled_back > 10);
  }
}

TW_TEST(the_guilty_request_dies_alone) {
  for (int kind = 0; kind < 3; ++kind) {
    FakeBehaviour behaviour;
    (kind == 0 ? behaviour.throw_token : kind == 1 ? behaviour.late_token : behaviour.nan_token) = 49;
    EngineCore core(fake(behaviour), options(60, 8, 64));
    std::vector<Request> requests;
    for (int64_t id = 0; id < 6; ++id) {
      requests.push_back(request(id, {7, 8, static_cast<int32_t>(id)}, 10));
      requests.back().sampling.prompt_logprobs = static_cast<int32_t>(id % 3) - 1;
    }
    requests[2].prompt.insert(requests[2].prompt.end(), {49, 1});  // a NaN among the rows that are told of
    {
      EngineCore other(fake(behaviour), options(60, 8, 64));
      for (const Request& r : requests) other.add(r, Clock::now());
      std::vector<Event> events;
      other.step(&events);  // found out in the very step
      auto last = std::ranges::find_if(events, [](const Event& event) { return event.finish == "error"; });
      TW_CHECK(last != events.end() && last->request_id == 2);
      TW_CHECK_EQ(std::ranges::count_if(events, [](const Event& event) { return !event.tokens.empty(); }), 5);
    }
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
    TW_CHECK(outcomes[2].last.error_type == (kind == 2 ? "NumericalError" : "TensorwrightError"));
    TW_CHECK(outcomes[2].last.error.find(kind == 0   ? "poison"
                                         : kind == 1 ? "late poison"
                                                     : "NaN") != std::string::npos);
    TW_CHECK(core.stats().failed >= 1);
  }
}

// A window that sees 9 positions: blocks of 4 in use stay few however long the request, and so may the cache
// be.
// Runs a request to its end, and returns the most blocks that it held.
static int32_t most_blocks(EngineCore& core, const Request& r, Outcomes* outcomes) {
  core.add(r, Clock::now());
  int32_t most = 0;
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    collect(std::move(events), outcomes);
    most = std::max(most, core.stats().used_blocks);
  }
  return most;
}

TW_TEST(a_window_bounds_the_blocks_of_a_long_request) {
  for (bool prefix_cache : {false, true}) {
    FakeBehaviour behaviour;
    behaviour.window = 9;
    EngineOptions o = options(6, 1, 8);
    o.prefix_cache = prefix_cache;
    EngineCore core(fake(behaviour), o);
    Request r = request(1, std::vector<int32_t>(60, 3), 50);
    validate_request(r, core.facts(), core.groups(), 1);
    TW_CHECK_EQ(core.groups()[0].max_held, 5);
    Outcomes outcomes;
    const int32_t most = most_blocks(core, r, &outcomes);
    TW_CHECK(most > 2 && most <= 5);
    TW_CHECK(same(outcomes[1], solo(r, 1, 9)));
    TW_CHECK_EQ(core.stats().cached_blocks > 0, prefix_cache);
    r.sampling.n = 2;  // eight blocks at the least
    TW_CHECK_ERROR(validate_request(r, core.facts(), core.groups(), 2), "PromptTooLongError");
  }
  TW_CHECK(!same(solo(request(1, std::vector<int32_t>(60, 3), 50), 1, 9),
                 solo(request(1, std::vector<int32_t>(60, 3), 50), 1, 30)));  // the window is seen
}

// A window of 9 positions and 5 sink tokens: two blocks of 4 more than without them, however long the
// request.
TW_TEST(sink_tokens_stay_and_the_blocks_behind_them_go) {
  for (bool prefix_cache : {false, true}) {
    FakeBehaviour behaviour;
    behaviour.window = 9;
    behaviour.sink_tokens = 5;
    EngineOptions o = options(8, 1, 8);
    o.prefix_cache = prefix_cache;
    EngineCore core(fake(behaviour), o);
    Request r = request(1, std::vector<int32_t>(60, 3), 50);
    for (int i = 0; i < 60; ++i) r.prompt[static_cast<size_t>(i)] = i % 7 + 1;
    validate_request(r, core.facts(), core.groups(), 1);
    TW_CHECK_EQ(core.groups()[0].max_held, 7);
    Outcomes outcomes;
    const int32_t most = most_blocks(core, r, &outcomes);
    TW_CHECK(most > 4 && most <= 7);
    TW_CHECK_EQ(core.stats().groups[0].sink_tokens, 5);
    TW_CHECK(same(outcomes[1], solo(r, 1, 9, false, false, 5)));
    TW_CHECK(!same(outcomes[1], solo(r, 1, 9)));
    TW_CHECK(!same(outcomes[1], solo(r, 1, 9, false, false, 4)));
    if (!prefix_cache) continue;
    // The blocks of the sink tokens were given back last, so they are remembered, and with them the prefix.
    TW_CHECK_EQ(core.stats().used_blocks, 0);
    const int64_t before = core.stats().steps.prefix_hit_tokens;
    TW_CHECK(same(run_core(core, {r})[1], outcomes[1]));
    TW_CHECK(core.stats().steps.prefix_hit_tokens > before);
  }
}

// Chunks of 8 positions in blocks of 4: a request never holds more than a window of 8 would, and at the end
// of each chunk next to nothing.
TW_TEST(a_chunk_gives_its_blocks_back_at_its_end) {
  for (bool prefix_cache : {false, true}) {
    FakeBehaviour behaviour;
    behaviour.window = 8;
    behaviour.chunked = true;
    EngineOptions o = options(6, 1, 8);
    o.prefix_cache = prefix_cache;
    EngineCore core(fake(behaviour), o);
    const Request r = request(1, std::vector<int32_t>(60, 3), 50);
    core.add(r, Clock::now());
    Outcomes outcomes;
    int32_t most = 0, least = 100;
    while (!core.idle()) {
      std::vector<Event> events;
      core.step(&events);
      const bool ended = !events.empty() && !events.back().finish.empty();
      collect(std::move(events), &outcomes);
      most = std::max(most, core.stats().used_blocks);
      if (!ended) least = std::min(least, core.stats().used_blocks);
    }
    TW_CHECK_EQ(core.stats().groups[0].chunked, true);
    TW_CHECK(most <= core.groups()[0].max_held);
    TW_CHECK_EQ(least, prefix_cache ? 1 : 0);  // the last published block keeps the place in the tree
    TW_CHECK(same(outcomes[1], solo(r, 1, 8, false, true)));
    TW_CHECK(!same(outcomes[1], solo(r, 1, 8)));  // a window slides
    TW_CHECK(!same(outcomes[1], solo(r, 1, 9, false, true)));
  }
}

TW_TEST(groups_with_windows_leave_memory_to_the_others) {
  FakeBehaviour behaviour;
  behaviour.groups = 2;
  behaviour.window = 9;
  EngineCore core(fake(behaviour), options(100, 2, 8, 2));
  TW_CHECK_EQ(core.groups()[1].blocks, 2 * 5);
  TW_CHECK_EQ(core.groups()[0].blocks, 190);
  TW_CHECK_EQ(core.stats().total_blocks, 190);
}

TW_TEST(completions_share_the_prompt_and_differ_by_seed) {
  for (int32_t prompt_tokens : {40, 41, 43}) {  // the last block full, and not
    EngineCore core(fake(), options(60, 8, 64));
    Request r = request(1, std::vector<int32_t>(prompt_tokens, 3), 6);
    r.sampling.n = 4;
    r.sampling.temperature = 1;
    r.sampling.seed = 5;
    core.add(r, Clock::now());
    std::vector<Event> events;
    core.step(&events);
    TW_CHECK_EQ(events.size(), 4u);  // the first token of each
    TW_CHECK_EQ(core.stats().running, 4);
    TW_CHECK_EQ(core.stats().used_blocks, (prompt_tokens + 3) / 4);
    TW_CHECK_EQ(core.stats().waste_slots, (4 - prompt_tokens % 4) % 4);
    Outcomes outcomes;
    collect(std::move(events), &outcomes);
    while (!core.idle()) {
      events.clear();
      core.step(&events);
      collect(std::move(events), &outcomes);
      TW_CHECK(core.stats().used_blocks <= 10 + 4 * 3);
    }
    for (int32_t i = 0; i < 4; ++i) TW_CHECK(same(outcomes[1 + kNext * i], solo_completion(r, i)));
    TW_CHECK(outcomes[1].tokens != outcomes[1 + kNext].tokens);
    TW_CHECK_EQ(core.stats().steps.prefill_tokens, prompt_tokens);
    TW_CHECK_EQ(core.stats().finished, 1);
    TW_CHECK_EQ(core.stats().used_blocks, 0);
  }
}

TW_TEST(completions_end_together_or_one_by_one) {
  FakeBehaviour behaviour;
  behaviour.nan_token = 49;
  for (const char* how : {"abort", "waiting", "one", "timeout", "error"}) {
    EngineCore core(fake(behaviour), options(60, 3, 64));
    Request r = request(1, {1, 2, 3, 4, 5}, 9);
    r.sampling.n = 3;
    if (std::string(how) == "timeout") r.sampling.timeout_s = 0;
    if (std::string(how) == "error") r.prompt.push_back(49);
    core.add(r, Clock::now());
    std::vector<Event> events;
    if (std::string(how) != "waiting") core.step(&events);
    if (std::string(how) == "one") {
      core.end_completion(1, 1, &events);
      core.end_completion(1, 5, &events);
      TW_CHECK_EQ(core.stats().running, 2);
      TW_CHECK_EQ(core.stats().aborted, 0);
      events.pop_back();  // as expected of one; now the others
    }
    if (std::string(how) == "timeout") core.expire(Clock::now(), &events);
    core.end(1, nullptr, &events);
    std::set<int32_t> ended;
    for (const Event& event : events) {
      if (!event.finish.empty()) TW_CHECK(ended.insert(event.completion).second);
    }
    TW_CHECK_EQ(ended.size(), std::string(how) == "one" ? 2u : 3u);
    EngineStats stats = core.stats();
    TW_CHECK_EQ(stats.used_blocks, 0);
    TW_CHECK_EQ(stats.aborted + stats.timed_out + stats.failed, 1);
    TW_CHECK(core.idle());
  }
}

// A copy that fails is tried again alone; one that fails again costs its request, and no other.
TW_TEST(a_block_that_cannot_be_copied_costs_one_request) {
  for (int32_t every : {1, 3}) {
    FakeBehaviour behaviour;
    behaviour.fail_copies = every;
    EngineCore core(fake(behaviour), options(60, 8, 64));
    std::vector<Request> requests;
    for (int64_t id = 0; id < 4; ++id) {
      requests.push_back(request(id, {7, 8, static_cast<int32_t>(id)}, 10));
      requests.back().sampling.n = id == 2 ? 1 : 2;
    }
    Outcomes outcomes = run_core(core, requests);
    for (const Request& r : requests) {
      for (int32_t i = 0; i < r.sampling.n; ++i) {
        const Outcome& outcome = outcomes[r.id + kNext * i];
        if (r.sampling.n == 1 || every > 1) TW_CHECK(same(outcome, solo_completion(r, i)));
        if (r.sampling.n == 2 && every == 1) TW_CHECK(outcome.last.finish == "error");
      }
    }
  }
}

// The second of two equal prompts finds the first one's blocks only with its salt; its tokens are the same.
TW_TEST(salted_requests_share_with_their_own_alone) {
  Request first = request(1, std::vector<int32_t>(21, 3), 6), second = first;
  second.id = 2;
  for (auto [salt, other] : {std::pair("", ""), {"", "x"}, {"x", ""}, {"x", "x"}, {"x", "y"}}) {
    EngineCore core(fake(), options(60, 4, 64));
    first.sampling.cache_salt = salt;
    second.sampling.cache_salt = other;
    run_core(core, {first});
    Outcome outcome = run_core(core, {second})[2];
    TW_CHECK_EQ(outcome.last.cached_tokens, std::string(salt) == other ? 20 : 0);
    TW_CHECK(same(outcome, solo(second)));
  }
}

// A lost block is found at the next check, and not before a step that has none.
TW_TEST(a_broken_invariant_is_found) {
  EngineOptions o = options(60, 4, 64);
  o.debug_lose_block = 3;
  EngineCore core(fake(), o);
  core.add(request(1, {1, 2, 3}, 90), Clock::now());
  std::vector<Event> events;
  core.step(&events);
  core.check();
  core.step(&events);
  TW_CHECK_THROWS(core.step(&events), InvariantError);
  TW_CHECK_THROWS(core.check(), InvariantError);
}

TW_TEST(invariants_are_checked_while_it_runs) {
  EngineCore core(fake(), options(60, 4, 64));
  run_core(core, {request(1, {1, 2, 3}, 100)});
  TW_CHECK(core.stats().invariant_checks >= 5);
}

TW_TEST(impossible_options_are_refused_by_name) {
  TW_CHECK_ERROR(EngineCore(fake(), options(0, 1, 1)), "OutOfMemoryError");
  TW_CHECK_ERROR(EngineCore(fake(), options(9, 4, 3)), "InvalidOptionError");
  TW_CHECK_ERROR(EngineCore(fake(), options(9, 0, 3)), "InvalidOptionError");
  EngineOptions o = options(9, 1, 1);
  o.max_prompt_rows = 0;
  TW_CHECK_ERROR(EngineCore(fake(), o), "InvalidOptionError");
  o = options(9, 1, 1);
  o.max_queue = 0;
  TW_CHECK_ERROR(EngineCore(fake(), o), "InvalidOptionError");
  EngineCore core(fake(), options(9, 1, 1));
  TW_CHECK_EQ(core.groups()[0].blocks, 9);
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

TW_TEST_MAIN()
