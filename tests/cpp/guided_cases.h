// What the tests of guided requests share: a 'grammar' whose masks depend on the tokens so far, and who
// answers for it.
#ifndef TENSORWRIGHT_TESTS_CPP_GUIDED_CASES_H_
#define TENSORWRIGHT_TESTS_CPP_GUIDED_CASES_H_

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "runtime/core/engine/mask_source.h"
#include "tests/cpp/engine_cases.h"

namespace tw_test {

inline MaskWords only(const std::vector<int32_t>& tokens) {
  MaskWords words(mask_words(kVocab));
  for (int32_t token : tokens) words[token / 32] |= 1u << (token % 32);
  return words;
}

// A third of the tokens or so, never none; last: the token before, -1 for none.
inline MaskWords mask_after(int32_t last, int32_t generated) {
  std::vector<int32_t> tokens = {(last + 7 * generated + 8) % kVocab};
  for (int32_t token = 0; token < kVocab; ++token) {
    uint32_t hash = static_cast<uint32_t>(token * 131 + last * 31 + generated * 17) * 2654435761u;
    if ((hash >> 16) % 3 == 0) tokens.push_back(token);
  }
  return only(tokens);
}

inline Request guided(Request r) {
  r.sampling.guided = true;
  r.first_mask = mask_after(-1, 0);
  return r;
}

// Knows the completions' tokens from their events, as the engine's consumer does. With a lag only one mask of
// lag + 1 is there when it is asked for, and waits come to nothing now and then.
class Answering : public MaskSource {
 public:
  explicit Answering(uint32_t lag = 0) : lag_(lag) {}

  void hear(const std::vector<Event>& events) {
    for (const Event& event : events) {
      auto& tokens = heard_[{event.request_id, event.completion}];
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  int32_t heard(int64_t id, int32_t completion) {
    return static_cast<int32_t>(heard_[{id, completion}].size());
  }
  // Returns the completion's last token, -1 before the first.
  int32_t last(int64_t id, int32_t completion) {
    const std::vector<int32_t>& tokens = heard_[{id, completion}];
    return tokens.empty() ? -1 : tokens.back();
  }
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    const std::vector<int32_t>& tokens = heard_[{id, completion}];
    TW_CHECK_EQ(static_cast<int32_t>(tokens.size()), generated);
    if (lag_ > 0 && random_() % (lag_ + 1) != 0) return nullptr;
    return std::make_shared<const MaskWords>(mask_after(last(id, completion), generated));
  }
  bool wait_for_masks(Clock::time_point until, std::vector<Event>* events) override {
    ++waits;
    bool endless = until == Clock::time_point::max();
    endless_waits += endless;
    if (on_wait) on_wait(events);
    return !hasty && (endless || lag_ == 0 || random_() % 4 != 0);
  }

  int waits = 0, endless_waits = 0;  // endless: nobody could go on without a mask
  bool hasty = false;                // every wait comes to nothing
  std::function<void(std::vector<Event>*)> on_wait;

 private:
  uint32_t lag_;
  std::mt19937 random_{5};
  std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>> heard_;
};

inline Outcomes run_guided(EngineCore& core, Answering& masks, const std::vector<Request>& requests) {
  Outcomes outcomes;
  for (const Request& r : requests) core.add(r, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    masks.hear(events);
    collect(std::move(events), &outcomes);
  }
  TW_CHECK_EQ(core.stats().used_blocks, 0);
  return outcomes;
}

// What a completion must equal: the request with its seed, alone.
inline Outcome guided_alone(Request r, int32_t completion = 0, int64_t groups = 1, int32_t window = 0) {
  if (r.sampling.seed) r.sampling.seed = completion_seed(*r.sampling.seed, completion);
  r.sampling.n = 1;
  if (completion > 0) r.sampling.prompt_logprobs = -1;
  EngineOptions o = options(100, 1, kMaxSeqLen, groups);
  o.prefix_cache = false;
  FakeBehaviour behaviour;
  behaviour.groups = groups;
  behaviour.window = window;
  Answering masks;
  EngineCore core(fake(behaviour), o, &masks);
  return run_guided(core, masks, {r})[r.id];
}

inline bool allowed(const MaskWords& mask, int32_t token) { return mask[token / 32] >> (token % 32) & 1; }

// Every token of the outcome is one that the grammar had allowed.
inline bool obeys(const Outcome& outcome) {
  int32_t last = -1, generated = 0;
  for (int32_t token : outcome.tokens) {
    if (!allowed(mask_after(last, generated++), token)) return false;
    last = token;
  }
  return true;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_GUIDED_CASES_H_
