// Takes one token from one row of logits. The tokens that may be drawn are those that transformers'
// processors leave (logit_processors.h has their order), then Temperature, TopK, TopP, MinP and Typical, and
// XTC. The draw is a function of the request's seed and the token's position.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
#define TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/rows/candidates.h"
#include "runtime/core/rows/row_estimate.h"
#include "runtime/core/rows/row_order.h"
#include "runtime/core/sampling/logit_processors.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

struct Sample {
  int32_t token = -1;
  std::vector<TokenLogprob> logprobs;  // if requested: the sampled token, then the likeliest others
};

// A token that may follow a beam.
struct NextToken {
  int32_t token;
  double logprob;
  std::vector<TokenLogprob> logprobs;  // if requested: of this token, then of the likeliest others
};

// Returns whether the token ends a sequence, whatever its length.
inline bool ends_sequence(const Sampling& sampling, int32_t token) {
  return sampling.stop_token_ids.contains(token) ||
         (!sampling.ignore_eos && sampling.eos_token_ids.contains(token));
}

// The object holds scratch only. Sampling parameters must have been validated.
class Sampler {
 public:
  // `position` is the index of the new token in its sequence. Throws Error{"TensorwrightError"} for a row
  // without a distribution (see row_max), Error{"InvalidRequestError"} if the request forbids all tokens.
  // Logprobs are those of the unchanged `logits`. mask: the allowed tokens (token_masks.h); an empty mask
  // allows all. changed: what the caller's own code made of the logits, which the token is drawn from; empty:
  // the logits.
  Sample sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed, int64_t position,
                const History& history = {}, std::span<const uint32_t> mask = {},
                std::span<const float> changed = {});

  // Returns what may follow in a beam search, the likeliest first: the `beam_width` likeliest tokens, and as
  // many of those that do not end the sequence, with their logprobs after logit_processors.h's steps. Tokens
  // that are forbidden are not among them. Throws as sample() does.
  std::vector<NextToken> likeliest(std::span<const float> logits, const Sampling& sampling,
                                   const History& history);

  // Returns the logprobs of one unchanged row: of `token`, then of the others among the `top` likeliest.
  // Throws Error{"NumericalError"} as sample() does.
  std::vector<TokenLogprob> score(std::span<const float> logits, int32_t token, int32_t top);

  // Returns the ids that may be drawn, ascending. coin: the number that decides whether XTC excludes tokens.
  std::vector<int32_t> token_set(std::span<const float> logits, const Sampling& sampling,
                                 const History& history = {}, std::span<const uint32_t> mask = {},
                                 double coin = 1);

 private:
  // The random numbers, in [0, 1), of one draw.
  struct Chance {
    double token, coin;
    Chance(uint64_t seed, int64_t position);
  };

  void take_likeliest(int32_t count, std::vector<NextToken>* next);
  void forbid(int32_t token);
  int32_t draw(std::span<const float> processed, const Sampling& sampling, const Chance& chance,
               std::span<const uint32_t> mask);
  bool read_estimate(std::span<const float> row, const Sampling& sampling);
  int32_t pick(std::span<const float> row, bool read, const Sampling& sampling, const Chance& chance);
  int32_t draw_narrowed(const Sampling& sampling, const Chance& chance);
  void narrow(const Sampling& sampling, double coin);
  void select(std::span<const float> row, const Sampling& sampling);
  void shape(const Sampling& sampling, double total);
  bool few_allowed(std::span<const float> logits, std::span<const uint32_t> mask);
  double take_from(float low);
  size_t collect_from(float low);
  double weigh_collected(float low);
  float lowest_within(double distance) const;
  float lowest_of_min_p(double min_p) const;
  bool take_top_k(const Sampling& sampling);
  bool take_top_p(const Sampling& sampling);
  std::vector<TokenLogprob> logprobs(std::span<const float> logits, float max, int32_t token, int32_t top);

  LogitProcessors processors_;
  std::vector<int32_t> allowed_;       // [few]: the tokens that a mask leaves
  std::vector<float> allowed_logits_;  // [few]
  RowEstimate estimate_;
  RowOrder order_;
  Candidates candidates_;
  Collected collected_;
  std::vector<float> scaled_;    // logits / temperature
  std::vector<float> beam_row_;  // logprobs
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SAMPLER_H_
