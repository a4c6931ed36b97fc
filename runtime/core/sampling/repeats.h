// Changes a row of logits against repetition of whole texts: DRY, which makes the token less likely that
// would go on as an earlier text did, the more so the longer the repeated text is; and no_repeat_ngram_size,
// which forbids the token that would complete n tokens that stand in the sequence already.
//
// Both take one pass over the tokens that they look at, however often these repeat themselves: a Z function
// over the tokens from the last to the first.
#ifndef TENSORWRIGHT_RUNTIME_CORE_REPEATS_H_
#define TENSORWRIGHT_RUNTIME_CORE_REPEATS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/scheduler/request.h"

namespace tensorwright {

class Repeats {
 public:
  // The most tokens that DRY looks back, whatever dry_penalty_last_n says: so a token costs no more than a
  // pass over so many.
  static constexpr int32_t kMaxDryWindow = 8192;

  static bool penalizes(const Sampling& sampling) {
    return sampling.dry_multiplier > 0 && sampling.dry_penalty_last_n != 0;
  }

  // Subtracts DRY's penalty from logits of `row`, [vocab_size]. It is that of llama.cpp:
  // dry_multiplier * dry_base ^ (length - dry_allowed_length), where `length` is how many of the last tokens
  // stood before the token somewhere earlier, at least dry_allowed_length and none of them at or before the
  // last breaker. Tokens that are breakers by themselves are not penalized.
  void penalize(const Sampling& sampling, std::span<const int32_t> tokens, std::span<float> row);

  // Sets logits to -inf as transformers' NoRepeatNGramLogitsProcessor does. n: at least 1.
  void ban_ngrams(int32_t n, std::span<const int32_t> tokens, std::span<float> row);

 private:
  void match_end(std::span<const int32_t> tokens);

  // [tokens]: lengths_[k] is how many tokens that end k before the last one equal the last tokens, for k > 0.
  std::vector<int32_t> lengths_;
  std::vector<int32_t> longest_;  // [vocab_size], zero between calls
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_REPEATS_H_
