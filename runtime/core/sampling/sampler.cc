#include "runtime/core/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "runtime/core/base/philox.h"
#include "runtime/core/rows/logit_row.h"

namespace tensorwright {

Sample Sampler::sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed,
                       int64_t position, const History& history, std::span<const uint32_t> mask,
                       std::span<const float> changed) {
  Sample sample;
  float max = 0;
  if (sampling.temperature > 0 && changed.empty() && !LogitProcessors::change_row(sampling, history, mask)) {
    // The row is read once, for its check and for the draw.
    const bool read = read_estimate(logits, sampling);
    max = read ? estimate_.max() : row_max(logits).value;
    sample.token = pick(logits, read, sampling, Chance(seed, position));
  } else {
    const RowMax found = row_max(logits);
    max = found.value;
    std::span<const float> processed =
        processors_.apply(changed.empty() ? logits : changed, sampling, history, mask);
    if (sampling.temperature > 0) {
      sample.token = draw(processed, sampling, Chance(seed, position), mask);
    } else {
      sample.token = processed.data() == logits.data() ? found.id : row_max(processed).id;
    }
  }
  if (sampling.logprobs >= 0) sample.logprobs = logprobs(logits, max, sample.token, sampling.logprobs);
  return sample;
}

std::vector<NextToken> Sampler::likeliest(std::span<const float> logits, const Sampling& sampling,
                                          const History& history) {
  const float max = row_max(logits).value;
  const double log_sum = max + std::log(sum_exp_below(logits, max));
  beam_row_.resize(logits.size());
  std::ranges::transform(logits, beam_row_.begin(),
                         [&](float logit) { return static_cast<float>(logit - log_sum); });
  const std::span<const float> processed = processors_.apply(beam_row_, sampling, history);
  if (processed.data() != beam_row_.data()) std::ranges::copy(processed, beam_row_.begin());
  const int32_t count = std::min(sampling.beam_width, static_cast<int32_t>(logits.size()));
  std::vector<NextToken> next;
  take_likeliest(count, &next);
  for (const NextToken& each : next) forbid(each.token);
  for (int32_t id : sampling.stop_token_ids.ids()) forbid(id);
  if (!sampling.ignore_eos)
    std::ranges::for_each(sampling.eos_token_ids.ids(), [&](int32_t id) { forbid(id); });
  take_likeliest(count, &next);
  std::ranges::stable_sort(next, std::greater(), &NextToken::logprob);
  if (sampling.logprobs >= 0) {
    for (NextToken& each : next) each.logprobs = logprobs(logits, max, each.token, sampling.logprobs);
  }
  return next;
}

// Appends the likeliest tokens of beam_row_ that are possible, of equal ones those with the lowest ids.
void Sampler::take_likeliest(int32_t count, std::vector<NextToken>* next) {
  std::vector<int32_t> ids;
  top_ids(beam_row_, count, &ids);
  const auto logprob = [&](int32_t id) { return beam_row_[static_cast<size_t>(id)]; };
  std::ranges::stable_sort(ids, std::greater(), logprob);
  if (ids.size() > static_cast<size_t>(count)) ids.resize(static_cast<size_t>(count));
  for (int32_t id : ids) {
    if (logprob(id) != -std::numeric_limits<float>::infinity()) next->push_back({id, logprob(id), {}});
  }
}

void Sampler::forbid(int32_t token) {
  beam_row_[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
}

std::vector<TokenLogprob> Sampler::score(std::span<const float> logits, int32_t token, int32_t top) {
  return logprobs(logits, row_max(logits).value, token, top);
}

std::vector<int32_t> Sampler::token_set(std::span<const float> logits, const Sampling& sampling,
                                        const History& history, std::span<const uint32_t> mask, double coin) {
  row_max(logits);  // throws for a row without a distribution
  std::span<const float> processed = processors_.apply(logits, sampling, history, mask);
  if (sampling.temperature == 0) return {row_max(processed).id};
  const bool few = few_allowed(processed, mask);
  select(few ? allowed_logits_ : processed, sampling);
  narrow(sampling, coin);
  std::vector<int32_t> ids = candidates_.ids;
  if (few)
    std::ranges::transform(ids, ids.begin(), [&](int32_t at) { return allowed_[static_cast<size_t>(at)]; });
  std::erase_if(ids, [&](int32_t id) { return processed[id] == -std::numeric_limits<float>::infinity(); });
  std::ranges::sort(ids);
  return ids;
}

Sampler::Chance::Chance(uint64_t seed, int64_t position)
    : token(philox_uniform(seed, static_cast<uint64_t>(position))),
      coin(philox_uniform(seed, static_cast<uint64_t>(position), Draws::kXtcCoin)) {}

int32_t Sampler::draw(std::span<const float> processed, const Sampling& sampling, const Chance& chance,
                      std::span<const uint32_t> mask) {
  const bool few = few_allowed(processed, mask);
  const std::span<const float> row = few ? allowed_logits_ : processed;
  const int32_t at = pick(row, read_estimate(row, sampling), sampling, chance);
  return few ? allowed_[static_cast<size_t>(at)] : at;
}

bool Sampler::read_estimate(std::span<const float> row, const Sampling& sampling) {
  return logit_loops().quick && estimate_.read(row, static_cast<float>(sampling.temperature));
}

// Returns the token of the definition, by the quickest way that is sure of it. read: whether estimate_ has
// the row.
int32_t Sampler::pick(std::span<const float> row, bool read, const Sampling& sampling, const Chance& chance) {
  const bool narrows = sampling.typical_p < 1 || chance.coin < sampling.xtc_probability;
  if (read) {
    std::optional<int32_t> token;
    if (sampling.top_k > 0 && sampling.top_k < static_cast<int32_t>(row.size())) {
      if (take_top_k(sampling)) return draw_narrowed(sampling, chance);
    } else if (sampling.top_p >= 1 && sampling.min_p <= 0) {
      if (!narrows) token = estimate_.draw(chance.token);
    } else if (sampling.top_p >= 1) {
      take_from(lowest_of_min_p(sampling.min_p));
      candidates_.keep_min_p(sampling.min_p);
      return draw_narrowed(sampling, chance);
    } else if (take_top_p(sampling)) {
      return draw_narrowed(sampling, chance);
    } else if (sampling.min_p <= 0 && !narrows) {
      token = order_.draw(&estimate_, sampling.top_p, chance.token);
    }
    if (token) return *token;
  }
  select(row, sampling);
  return draw_narrowed(sampling, chance);
}

int32_t Sampler::draw_narrowed(const Sampling& sampling, const Chance& chance) {
  narrow(sampling, chance.coin);
  return candidates_.draw(chance.token);
}

// Applies typical_p and XTC to the candidates that the other parameters left.
void Sampler::narrow(const Sampling& sampling, double coin) {
  if (sampling.typical_p < 1) candidates_.keep_typical(sampling.typical_p);
  if (coin < sampling.xtc_probability) candidates_.exclude_top(sampling.xtc_threshold);
}

// Selects the candidates by the definition and leaves them with their weights, in an order that the row alone
// decides.
void Sampler::select(std::span<const float> row, const Sampling& sampling) {
  const auto count = static_cast<int32_t>(row.size());
  scaled_.resize(row.size());
  // The division is in fp32, as in transformers: ties that it makes are ties for top_k.
  divide_row(row, static_cast<float>(sampling.temperature), scaled_.data());
  const RowMax max = row_max(scaled_);  // the division may overflow
  if (sampling.top_k > 0 && sampling.top_k < count) {
    top_ids(scaled_, sampling.top_k, &candidates_.ids);
    candidates_.scores.resize(candidates_.ids.size());
    for (size_t i = 0; i < candidates_.ids.size(); ++i)
      candidates_.scores[i] = scaled_[static_cast<size_t>(candidates_.ids[i])];
  } else {
    candidates_.ids.resize(row.size());
    std::iota(candidates_.ids.begin(), candidates_.ids.end(), 0);
    candidates_.scores = scaled_;
  }
  shape(sampling, candidates_.weigh(max.value));
}

// Applies top_p and min_p to candidates that have weights and are all the tokens there are.
void Sampler::shape(const Sampling& sampling, double total) {
  if (sampling.top_p < 1)
    candidates_.keep_top_p(sampling.top_p, {total, total}, candidates_.ids.size(), false);
  if (sampling.min_p > 0) candidates_.keep_min_p(sampling.min_p);
}

// Makes the row's values from `low` on the candidates, except those with the lowest score, because values
// below `low` might tie with them. Returns the sum of the candidates' weights.
double Sampler::take_from(float low) {
  collect_from(low);
  return weigh_collected(low);
}

size_t Sampler::collect_from(float low) {
  collected_.clear();
  estimate_.collect(low, &collected_);
  return collected_.size;
}

double Sampler::weigh_collected(float low) {
  const float temperature = estimate_.temperature(), lowest = low / temperature;
  scaled_.resize(collected_.size);
  divide_row({collected_.values.data(), collected_.size}, temperature, scaled_.data());
  candidates_.ids.clear(), candidates_.scores.clear();
  for (size_t i = 0; i < collected_.size; ++i) {
    if (!(scaled_[i] > lowest)) continue;
    candidates_.ids.push_back(collected_.ids[i]);
    candidates_.scores.push_back(scaled_[i]);
  }
  return candidates_.weigh(estimate_.scaled_max());
}

// Returns a logit below all logits whose score is less than `distance` below the largest score.
float Sampler::lowest_within(double distance) const {
  const double low =
      (static_cast<double>(estimate_.scaled_max()) - distance) * static_cast<double>(estimate_.temperature());
  return static_cast<float>(low - std::abs(low) * 0x1p-20 - 1e-30);
}

float Sampler::lowest_of_min_p(double min_p) const {
  return lowest_within(1e-5 - std::log(static_cast<double>(static_cast<float>(min_p))));
}

// Applies top_k, top_p and min_p to the values that may be among the k largest scores. Returns false where
// the temperature makes too many ties for that.
bool Sampler::take_top_k(const Sampling& sampling) {
  const float temperature = estimate_.temperature();
  const float kth = kth_largest(estimate_.row(), sampling.top_k);
  const float threshold = kth / temperature;
  const float low = kth - std::abs(kth) * 0x1p-20f - 1e-30f;
  if (!(low / temperature < threshold)) return false;
  take_from(low);
  size_t kept = 0;
  for (size_t i = 0; i < candidates_.ids.size(); ++i) {
    if (candidates_.scores[i] < threshold) continue;
    candidates_.ids[kept] = candidates_.ids[i];
    candidates_.scores[kept++] = candidates_.scores[i];
  }
  candidates_.ids.resize(kept), candidates_.scores.resize(kept);
  shape(sampling, candidates_.weigh(estimate_.scaled_max()));
  return true;
}

// Applies top_p, and min_p if the request has it, to the likeliest tokens. Returns false if top_p seems to
// keep too many tokens for that, or if the estimate of the sum leaves open which token is the last.
bool Sampler::take_top_p(const Sampling& sampling) {
  const size_t many = sampling.min_p > 0 ? 4096 : 1024;  // order_ has no min_p
  const float lowest =
      sampling.min_p > 0 ? lowest_of_min_p(sampling.min_p) : -std::numeric_limits<float>::infinity();
  Total total = estimate_.total();
  for (double distance : {1.5, 3.0, 5.0, 7.0, 9.0, 12.0, 16.0}) {
    const float low = std::max(lowest, lowest_within(distance));
    const bool complete = low == lowest;
    if (collect_from(low) > many && !complete) return false;
    const double sum = weigh_collected(low);
    if (!complete && sum < sampling.top_p * total.low) {
      if (sampling.min_p <= 0 && sum < 0.5 * sampling.top_p * total.low) return false;
      continue;
    }
    Kept kept = candidates_.keep_top_p(sampling.top_p, total, estimate_.row().size(), !complete);
    if (kept == Kept::unknown && estimate_.sharpen()) {
      total = estimate_.total();
      kept = candidates_.keep_top_p(sampling.top_p, total, estimate_.row().size(), !complete);
    }
    if (kept == Kept::all) continue;
    if (kept == Kept::yes && sampling.min_p > 0) candidates_.keep_min_p(sampling.min_p);
    return kept == Kept::yes;
  }
  return false;
}

// Returns whether the mask leaves so few tokens that a row of these alone is faster to draw from. If so, they
// are in allowed_, ascending. The other tokens would have the weight zero, so the draw is the same.
bool Sampler::few_allowed(std::span<const float> logits, std::span<const uint32_t> mask) {
  constexpr size_t kFewOf = 8;
  size_t count = 0;
  for (uint32_t word : mask) count += static_cast<size_t>(std::popcount(word));
  if (mask.empty() || count * kFewOf > logits.size()) return false;
  allowed_.clear();
  allowed_logits_.clear();
  for (size_t i = 0; i < mask.size(); ++i) {
    for (uint32_t word = mask[i]; word; word &= word - 1) {
      const size_t id = i * 32 + static_cast<size_t>(std::countr_zero(word));
      if (id >= logits.size()) break;  // bits past the vocabulary
      allowed_.push_back(static_cast<int32_t>(id));
      allowed_logits_.push_back(logits[id]);
    }
  }
  return true;
}

std::vector<TokenLogprob> Sampler::logprobs(std::span<const float> logits, float max, int32_t token,
                                            int32_t top) {
  double log_total = static_cast<double>(max) + std::log(sum_exp_below(logits, max));
  auto entry = [&](int32_t id) {
    const int32_t greater = logits[id] == max ? 0 : count_greater(logits, logits[id]);
    return TokenLogprob{id, static_cast<double>(logits[id]) - log_total, 1 + greater};
  };
  std::vector<TokenLogprob> result = {entry(token)};
  if (top == 0) return result;
  std::vector<int32_t> ids;
  top_ids(logits, top, &ids);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  int32_t greater = 0;
  for (int32_t i = 0; i < top; ++i) {
    if (i > 0 && logits[ids[i]] < logits[ids[i - 1]]) greater = i;
    if (ids[i] == token) continue;
    result.push_back({ids[i], static_cast<double>(logits[ids[i]]) - log_total, 1 + greater});
  }
  return result;
}

}  // namespace tensorwright
