// One row of logits to one token. The token set is that of transformers' Temperature, TopK and TopP
// processors, in that order; the draw is a function of the request's seed and the token's position.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
#define TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

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
  // without a distribution (see row_max).
  Sample sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed, int64_t position);

  // The ids that temperature, top_k and top_p leave, ascending.
  std::vector<int32_t> token_set(std::span<const float> logits, const Sampling& sampling);

 private:
  void select(std::span<const float> logits, const Sampling& sampling);
  void keep_top_p(double top_p);
  int32_t draw(double uniform) const;
  std::vector<TokenLogprob> logprobs(std::span<const float> logits, float max, int32_t token, int32_t top);

  std::vector<float> scaled_;    // [vocab_size] logits / temperature
  std::vector<int32_t> ids_;     // [kept] candidates
  std::vector<float> scores_;    // [kept]
  std::vector<double> weights_;  // [kept] probabilities up to a common factor
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
