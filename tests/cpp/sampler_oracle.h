// What a token and a logprob are, written down as simply as it goes: every weight in double, every sum in
// order, everything sorted. Slow; the sampler must give the same token, always.
#ifndef TENSORWRIGHT_TESTS_CPP_SAMPLER_ORACLE_H_
#define TENSORWRIGHT_TESTS_CPP_SAMPLER_ORACLE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/base/philox.h"
#include "runtime/core/scheduler/request.h"

namespace tw_test {

// exp(x), x <= 0, in plain double arithmetic; 0 below -700.
inline double oracle_exp(double x) {
  if (!(x >= -700)) return 0;
  const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52, n = shifted - 0x1.8p52;
  const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  const double factorials[] = {6227020800.0, 479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0,
                               720.0,        120.0,       24.0,       6.0,       2.0,      1.0,     1.0};
  double p = 0;
  for (double factorial : factorials) p = p * r + 1.0 / factorial;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(shifted) << 52));
}

struct OracleToken {
  int32_t id;
  float score;
  double weight;
};

// The tokens that may be drawn, in the order in which a draw counts them.
inline std::vector<OracleToken> oracle_tokens(std::span<const float> logits,
                                              const tensorwright::Sampling& sampling) {
  std::vector<OracleToken> tokens;
  for (size_t i = 0; i < logits.size(); ++i)
    tokens.push_back({static_cast<int32_t>(i), logits[i] / static_cast<float>(sampling.temperature), 0});
  std::vector<float> sorted;
  for (const OracleToken& token : tokens) sorted.push_back(token.score);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < tokens.size()) {
    const float kth = sorted[static_cast<size_t>(sampling.top_k) - 1];
    std::erase_if(tokens, [&](const OracleToken& token) { return token.score < kth; });
  }
  double total = 0;
  for (OracleToken& token : tokens)
    total += token.weight = oracle_exp(static_cast<double>(token.score) - static_cast<double>(sorted[0]));
  if (sampling.top_p < 1) {
    std::sort(tokens.begin(), tokens.end(), [](const OracleToken& a, const OracleToken& b) {
      return a.score != b.score ? a.score > b.score : a.id > b.id;
    });
    const float bound = static_cast<float>(1.0 - sampling.top_p);
    size_t kept = 0;
    double sum = 0;
    while (kept < tokens.size() && (kept == 0 || static_cast<float>((total - sum) / total) > bound))
      sum += tokens[kept++].weight;
    tokens.resize(kept);
  }
  if (sampling.min_p > 0) {
    const float floor = static_cast<float>(sampling.min_p);
    std::erase_if(tokens, [&](const OracleToken& token) { return static_cast<float>(token.weight) < floor; });
  }
  return tokens;
}

// What typical_p leaves of the tokens of oracle_tokens(), and then XTC, if its coin says so.
inline std::vector<OracleToken> oracle_narrowed(std::vector<OracleToken> tokens,
                                                const tensorwright::Sampling& sampling, double coin) {
  const auto total_of = [&] {
    double total = 0;
    for (const OracleToken& token : tokens) total += token.weight;
    return total;
  };
  if (sampling.typical_p < 1) {
    // The largest score of the row is among the tokens: nothing takes the likeliest token away.
    const float max = std::ranges::max(tokens, {}, &OracleToken::score).score;
    const auto below = [&](const OracleToken& token) {
      return static_cast<double>(token.score) - static_cast<double>(max);
    };
    const double total = total_of();
    double lanes[8] = {};
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i].weight > 0) lanes[i % 8] += tokens[i].weight * below(tokens[i]);
    for (int width = 4; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    const double mean = lanes[0] / total;
    const auto distance = [&](const OracleToken& token) { return std::abs(below(token) - mean); };
    std::erase_if(tokens, [](const OracleToken& token) { return !(token.weight > 0); });
    std::vector<OracleToken> nearest = tokens;
    std::sort(nearest.begin(), nearest.end(), [&](const OracleToken& a, const OracleToken& b) {
      return std::pair(distance(a), a.weight) < std::pair(distance(b), b.weight);
    });
    double sum = 0, last = 0;
    for (const OracleToken& token : nearest) {
      last = distance(token);
      if ((sum += token.weight) >= sampling.typical_p * total) break;
    }
    std::erase_if(tokens, [&](const OracleToken& token) { return distance(token) > last; });
  }
  if (coin < sampling.xtc_probability) {
    const double bar = sampling.xtc_threshold * total_of();
    std::vector<OracleToken> top;
    for (const OracleToken& token : tokens)
      if (token.weight > 0 && token.weight >= bar) top.push_back(token);
    std::sort(top.begin(), top.end(), [](const OracleToken& a, const OracleToken& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.id > b.id;
    });
    for (size_t i = 0; i + 1 < top.size(); ++i)
      std::erase_if(tokens, [&](const OracleToken& token) { return token.id == top[i].id; });
  }
  return tokens;
}

inline int32_t oracle_at(const std::vector<OracleToken>& tokens, double uniform) {
  double total = 0, sum = 0;
  for (const OracleToken& token : tokens) total += token.weight;
  const double target = uniform * total;
  int32_t last = tokens[0].id;
  for (const OracleToken& token : tokens) {
    sum += token.weight;
    if (sum > target) return token.id;
    if (token.weight > 0) last = token.id;
  }
  return last;
}

inline int32_t oracle_draw(const std::vector<OracleToken>& tokens, uint64_t seed, int64_t position) {
  return oracle_at(tokens, tensorwright::philox_uniform(seed, static_cast<uint64_t>(position)));
}

// The logarithm of the whole sum: in eight lanes by index, then a tree.
inline double oracle_log_total(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double lanes[8] = {};
  for (size_t i = 0; i < logits.size(); ++i) lanes[i % 8] += oracle_exp(static_cast<double>(logits[i]) - max);
  for (int width = 4; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return max + std::log(lanes[0]);
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_SAMPLER_ORACLE_H_
