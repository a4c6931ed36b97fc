// What a request asks to be changed about a row of logits before a token is taken from it.
//
// The order of everything that shapes a token, which is transformers' order with presence and frequency put
// next to the repetition penalty (as vLLM has them):
//   1. logit_bias          x + bias
//   2. repetition_penalty  of each token of prompt and output: x < 0 ? x * p : x / p
//   3. frequency_penalty   x - p * (times in the output)
//   4. presence_penalty    x - p, if in the output
//   5. bad_words           -inf for the token that would complete one, prompt included
//   6. min_tokens          -inf for whatever ends the request, while the output is shorter
//   7. the mask            -inf for what a guided request's grammar does not allow here
//   8. temperature, top_k, top_p, min_p: the sampler
// The answer is a function of the row, the request's parameters and its own tokens.
#ifndef TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_
#define TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// The tokens of a sequence so far; those from prompt_tokens on are its output.
struct History {
  std::span<const int32_t> tokens;
  int32_t prompt_tokens = 0;

  std::span<const int32_t> output() const { return tokens.subspan(static_cast<size_t>(prompt_tokens)); }
};

class LogitProcessors {
 public:
  // Whether anything is asked for.
  static bool change_row(const Sampling& sampling, const History& history, std::span<const uint32_t> mask);
  // The row as steps 1 to 7 leave it: `logits` itself if nothing is asked for, else a copy that stays valid
  // until the next call. mask: as token_masks.h has it, empty: none. Throws Error{"InvalidRequestError"} if
  // no token is left.
  std::span<const float> apply(std::span<const float> logits, const Sampling& sampling,
                               const History& history, std::span<const uint32_t> mask = {});

 private:
  void copy(std::span<const float> logits, std::span<const uint32_t> mask);
  void change(const Sampling& sampling, const History& history);
  void repetition(const Sampling& sampling, const History& history);
  void occurrences(const Sampling& sampling, const History& history);
  void ban(const Sampling& sampling, const History& history);

  std::vector<float> row_;       // [vocab_size]
  std::vector<int32_t> counts_;  // [vocab_size], zero between calls
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_
