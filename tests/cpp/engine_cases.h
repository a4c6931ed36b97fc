// What the engine's tests share: requests made up at random, what they were told, and what they say alone.
#ifndef TENSORWRIGHT_TESTS_CPP_ENGINE_CASES_H_
#define TENSORWRIGHT_TESTS_CPP_ENGINE_CASES_H_

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "runtime/core/engine/engine_core.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_executor.h"
#include "tests/cpp/scheduler_simulation.h"

namespace tw_test {

using namespace tensorwright;

// How long a test waits for what must come. Sanitized tests may have hardly any processor beside others.
inline constexpr std::chrono::minutes kPatience(20);

inline constexpr int32_t kVocab = 50, kMaxSeqLen = 120, kBlockSize = 4;

using Tokens = std::vector<int32_t>;

// Tokens that differ from those of another `first` at each place.
inline Tokens numbers(int32_t first, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((first + 7 * i) % kVocab);
  return tokens;
}

inline std::unique_ptr<Executor> fake(FakeBehaviour behaviour = {}) {
  return std::make_unique<FakeExecutor>(kVocab, kMaxSeqLen, kBlockSize, behaviour);
}

inline EngineOptions options(int32_t blocks, int32_t batch, int32_t tokens, int64_t groups = 1) {
  EngineOptions o;
  o.kv_cache_bytes = blocks * 100 * groups;
  o.max_batch_size = batch;
  o.max_num_tokens = tokens;
  return o;
}

inline Request request(int64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
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
  std::vector<std::vector<TokenLogprob>> logprobs, prompt_logprobs;
  Event last;
};
// The first completion of request 5 is at 5, the next at 5 + kNext; ids are below that.
using Outcomes = std::map<int64_t, Outcome>;
inline constexpr int64_t kNext = 10000;

inline void collect(std::vector<Event> events, Outcomes* outcomes) {
  for (Event& event : events) {
    Outcome& outcome = (*outcomes)[event.request_id + kNext * event.completion];
    TW_CHECK(outcome.last.finish.empty());  // nothing comes after the end
    outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
    outcome.logprobs.insert(outcome.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    outcome.prompt_logprobs.insert(outcome.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                   event.prompt_logprobs.end());
    outcome.last = std::move(event);
  }
}

// States of recurrent layers beside `groups` cache groups, of which there may be none.
inline FakeBehaviour with_states(int64_t groups = 1, int32_t window = 0) {
  FakeBehaviour behaviour;
  behaviour.states = true;
  behaviour.groups = groups;
  behaviour.window = window;
  return behaviour;
}

inline Outcomes run_core(EngineCore& core, const std::vector<Request>& requests) {
  Outcomes outcomes;
  for (const Request& r : requests) core.add(r, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    collect(std::move(events), &outcomes);
  }
  for (const EngineStats::Blocks& group : core.stats().groups) {
    TW_CHECK_EQ(group.used, 0);
    TW_CHECK_EQ(group.free + group.cached, group.total);
  }
  TW_CHECK_EQ(core.stats().used_state_slots, core.stats().state_snapshots);
  return outcomes;
}

inline Outcome solo(const Request& r, int64_t groups = 1, int32_t window = 0, bool states = false,
                    bool chunked = false, int32_t sink_tokens = 0) {
  EngineOptions o = options(100, 1, kMaxSeqLen, groups);
  o.prefix_cache = false;
  FakeBehaviour behaviour;
  behaviour.groups = groups;
  behaviour.window = window;
  behaviour.chunked = chunked;
  behaviour.sink_tokens = sink_tokens;
  behaviour.states = states;
  EngineCore core(fake(behaviour), o);
  return run_core(core, {r})[r.id];
}

// What a completion must equal: the request with its seed, alone.
inline Outcome solo_completion(Request r, int32_t completion, int64_t groups = 1, int32_t window = 0,
                               bool states = false, bool chunked = false, int32_t sink_tokens = 0) {
  if (r.sampling.seed) r.sampling.seed = completion_seed(*r.sampling.seed, completion);
  r.sampling.n = 1;
  if (completion > 0) r.sampling.prompt_logprobs = -1;  // the first tells of the prompt
  return solo(r, groups, window, states, chunked, sink_tokens);
}

inline bool same(const Outcome& a, const Outcome& b) {
  auto equal = [](const std::vector<TokenLogprob>& one, const std::vector<TokenLogprob>& other) {
    return std::ranges::equal(one, other, [](const TokenLogprob& x, const TokenLogprob& y) {
      return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank;
    });
  };
  return a.tokens == b.tokens && a.last.finish == b.last.finish && a.last.stop_token == b.last.stop_token &&
         std::ranges::equal(a.logprobs, b.logprobs, equal) &&
         std::ranges::equal(a.prompt_logprobs, b.prompt_logprobs, equal);
}

// Of n completions if `blocks` hold so many.
inline Request random_request(std::mt19937& random, int64_t id, int32_t n = 1, int32_t blocks = 0) {
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
  if (random() % 3 == 0) r.sampling.prompt_logprobs = static_cast<int32_t>(random() % 4);
  if (random() % 2) r.sampling.eos_token_ids = {static_cast<int32_t>(random() % kVocab)};
  int32_t prompt_tokens = static_cast<int32_t>(r.prompt.size());
  if (fits(blocks, kBlockSize, prompt_tokens, r.sampling.max_tokens, n)) r.sampling.n = n;
  return r;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_ENGINE_CASES_H_
