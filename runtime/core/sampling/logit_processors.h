// Changes a row of logits as the request asks, before a token is taken from the row.
//
// The steps that shape a token are in this order, which is that of transformers with the presence and
// frequency penalties next to the repetition penalty (as in vLLM):
//   1. logit_bias          x + bias
//   2. repetition_penalty  of each token of prompt and output: x < 0 ? x * p : x / p
//   3. frequency_penalty   x - p * (times in the output)
//   4. presence_penalty    x - p, if the token is in the output
//   5. DRY                 x - penalty, for a token that goes on as an earlier text did (repeats.h)
//   6. no_repeat_ngram     -inf for a token that would complete n tokens that were there (repeats.h)
//   7. bad_words           -inf for a token that would complete a bad word; words may begin in the prompt
//   8. min_tokens          -inf for tokens that end the request, while the output is shorter
//   9. the mask            -inf for tokens that the grammar of a guided request does not allow here
//  10. temperature, top_k, top_p, min_p, typical_p and XTC, which the sampler applies
// Before them all comes the caller's own code (row_processor.h).
// The result is a function of the row, the request's parameters and the request's own tokens.
#ifndef TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_
#define TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/sampling/repeats.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// The tokens of a sequence so far. Those from prompt_tokens on are the output.
struct History {
  std::span<const int32_t> tokens;
  int32_t prompt_tokens = 0;

  std::span<const int32_t> output() const { return tokens.subspan(static_cast<size_t>(prompt_tokens)); }
};

class LogitProcessors {
 public:
  // Returns whether the request asks for any change of the row.
  static bool change_row(const Sampling& sampling, const History& history, std::span<const uint32_t> mask);
  // Returns the row after steps 1 to 9: `logits` itself if the request asks for no change, else a copy that
  // stays valid until the next call. mask: as in token_masks.h; an empty mask allows all tokens. Throws
  // Error{"InvalidRequestError"} if no token is left.
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
  Repeats repeats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_LOGIT_PROCESSORS_H_
