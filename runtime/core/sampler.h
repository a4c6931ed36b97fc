// One row of logits to one token. The token set is that of transformers' processors (logit_processors.h has
// the order of all), then Temperature, TopK, TopP and MinP; the draw is a function of the request's seed and
// the token's position.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
#define TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/logit_processors.h"
#include "runtime/core/request.h"

namespace tensorwright {

struct Sample {
  int32_t token = -1;
  std::vector<TokenLogprob> logprobs;  // empty unless asked for: the sampled token, then the other likeliest
};

// Holds scratch only. Sampling parameters are taken as validated.
class Sampler {
 public:
  // `position` is the index of the new token in its sequence. Throws Error{"TensorwrightError"} for a row
  // without a distribution (see row_max), Error{"InvalidRequestError"} if the request forbids all tokens.
  // Logprobs are those of `logits` as they came. mask: of the tokens allowed (token_masks.h), empty: all.
  Sample sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed, int64_t position,
                const History& history = {}, std::span<const uint32_t> mask = {});

  // The logprobs of one row as it came: of `token`, then of the others among the `top` likeliest. Throws
  // Error{"NumericalError"} as sample() does.
  std::vector<TokenLogprob> score(std::span<const float> logits, int32_t token, int32_t top);

  // The ids that may be drawn, ascending.
  std::vector<int32_t> token_set(std::span<const float> logits, const Sampling& sampling,
                                 const History& history = {}, std::span<const uint32_t> mask = {});

 private:
  void select(std::span<const float> logits, const Sampling& sampling, std::span<const uint32_t> mask);
  bool few_allowed(std::span<const float> logits, std::span<const uint32_t> mask);
  void keep_top_p(double top_p);
  size_t sort_more(size_t sorted);
  void keep_min_p(double min_p);
  int32_t draw(double uniform) const;
  std::vector<TokenLogprob> logprobs(std::span<const float> logits, float max, int32_t token, int32_t top);

  LogitProcessors processors_;
  std::vector<int32_t> allowed_;       // [few] tokens that a mask leaves
  std::vector<float> allowed_logits_;  // [few]
  std::vector<float> scaled_;          // [vocab_size or few] logits / temperature
  std::vector<int32_t> ids_;           // [kept] candidates
  std::vector<float> scores_;          // [kept]
  std::vector<double> weights_;        // [kept] probabilities up to a common factor
  double total_ = 0;                   // of weights_, in order
  std::vector<uint64_t> order_, spare_;
  std::vector<int32_t> kept_ids_;
  std::vector<double> kept_weights_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
