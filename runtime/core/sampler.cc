#include "runtime/core/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/core/logit_row.h"
#include "runtime/core/philox.h"

namespace tensorwright {

namespace {

// Ascending keys are descending scores, of equal ones higher indices first. -0 and 0 are equal.
uint64_t descending_key(float score, uint32_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | ~index;
}

// Sorts keys[from, end). Many of them by their digits: far fewer steps than comparisons would take.
void sort_keys(std::vector<uint64_t>& keys, size_t from, std::vector<uint64_t>* spare) {
  constexpr size_t kMany = 4096, kDigits = 1 << 11;
  const size_t n = keys.size() - from;
  if (n < kMany) {
    std::sort(keys.begin() + static_cast<std::ptrdiff_t>(from), keys.end());
    return;
  }
  spare->resize(n);
  uint64_t *in = keys.data() + from, *out = spare->data();
  for (int shift = 0; shift < 64; shift += 11) {
    std::array<uint32_t, kDigits> place{};
    for (size_t i = 0; i < n; ++i) ++place[in[i] >> shift & (kDigits - 1)];
    if (place[in[0] >> shift & (kDigits - 1)] == n) continue;  // all alike
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0u);
    for (size_t i = 0; i < n; ++i) out[place[in[i] >> shift & (kDigits - 1)]++] = in[i];
    std::swap(in, out);
  }
  if (in == spare->data()) std::copy_n(in, n, keys.data() + from);
}

}  // namespace

Sample Sampler::sample(std::span<const float> logits, const Sampling& sampling, uint64_t seed,
                       int64_t position, const History& history, std::span<const uint32_t> mask) {
  RowMax max = row_max(logits);
  std::span<const float> processed = processors_.apply(logits, sampling, history, mask);
  Sample sample;
  if (sampling.temperature > 0) {
    select(processed, sampling, mask);
    sample.token = draw(philox_uniform(seed, static_cast<uint64_t>(position)));
  } else {
    sample.token = processed.data() == logits.data() ? max.id : row_max(processed).id;
  }
  if (sampling.logprobs >= 0) sample.logprobs = logprobs(logits, max.value, sample.token, sampling.logprobs);
  return sample;
}

std::vector<TokenLogprob> Sampler::score(std::span<const float> logits, int32_t token, int32_t top) {
  return logprobs(logits, row_max(logits).value, token, top);
}

std::vector<int32_t> Sampler::token_set(std::span<const float> logits, const Sampling& sampling,
                                        const History& history, std::span<const uint32_t> mask) {
  row_max(logits);  // refuses a row without a distribution
  std::span<const float> processed = processors_.apply(logits, sampling, history, mask);
  if (sampling.temperature == 0) return {row_max(processed).id};
  select(processed, sampling, mask);
  std::vector<int32_t> ids = ids_;
  std::erase_if(ids, [&](int32_t id) { return processed[id] == -std::numeric_limits<float>::infinity(); });
  std::ranges::sort(ids);
  return ids;
}

// Leaves the candidates in ids_, with their weights, in an order that the row alone decides.
void Sampler::select(std::span<const float> logits, const Sampling& sampling,
                     std::span<const uint32_t> mask) {
  const bool few = few_allowed(logits, mask);
  if (few) logits = allowed_logits_;
  int32_t count = static_cast<int32_t>(logits.size());
  scaled_.resize(logits.size());
  // fp32 as transformers divides: ties that the division makes are ties for top_k.
  float temperature = static_cast<float>(sampling.temperature);
  divide_row(logits, temperature, scaled_.data());
  RowMax max = row_max(scaled_);  // the division may overflow
  if (sampling.top_k > 0 && sampling.top_k < count) {
    top_ids(scaled_, sampling.top_k, &ids_);
    scores_.resize(ids_.size());
    for (size_t i = 0; i < ids_.size(); ++i) scores_[i] = scaled_[ids_[i]];
  } else {
    ids_.resize(logits.size());
    std::iota(ids_.begin(), ids_.end(), 0);
    scores_ = scaled_;
  }
  if (few) std::ranges::transform(ids_, ids_.begin(), [&](int32_t at) { return allowed_[at]; });
  weights_.resize(ids_.size());
  total_ = exp_below(scores_, max.value, weights_.data());
  if (sampling.top_p < 1) keep_top_p(sampling.top_p);
  if (sampling.min_p > 0) keep_min_p(sampling.min_p);
}

// Whether the mask leaves so few tokens that they are better looked at alone: then they are in allowed_,
// ascending. The others would have the weight zero, so the draw is the same.
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

// transformers sorts ascending and removes while the cumulative probability is <= 1 - top_p, but for the
// last. From the other end: a token stays while (total - weight of those after it) / total > 1 - top_p.
// Compared in fp32 as there; of equal scores the higher id stays, as a stable ascending sort has it.
void Sampler::keep_top_p(double top_p) {
  const double total = total_;
  float bound = static_cast<float>(1.0 - top_p);
  // What stays has cumulative weight > bound * total made of at most n weights no larger than its own; so
  // only weights above that n-th part need sorting. The slack covers the fp32 comparison.
  double floor = bound * total / static_cast<double>(weights_.size()) * (1 - 1e-6);
  order_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] >= floor) order_.push_back(descending_key(scores_[i], static_cast<uint32_t>(i)));
  }
  double after = 0;
  size_t kept = 0, sorted = 0;
  kept_ids_.clear();
  kept_weights_.clear();
  auto stays = [&] { return kept == 0 || static_cast<float>((total - after) / total) > bound; };
  for (; kept < order_.size() && stays(); ++kept) {
    if (kept == sorted) sorted = sort_more(sorted);
    const size_t i = ~static_cast<uint32_t>(order_[kept]);
    after += weights_[i];
    kept_ids_.push_back(ids_[i]);
    kept_weights_.push_back(weights_[i]);
  }
  ids_.swap(kept_ids_);
  weights_.swap(kept_weights_);
  total_ = after;
}

// Sorts the next keys of order_ after the first `sorted`; returns how many are sorted now. Few stay, mostly:
// no more than it takes.
size_t Sampler::sort_more(size_t sorted) {
  constexpr size_t kFew = 256;
  auto from = order_.begin() + static_cast<std::ptrdiff_t>(sorted);
  if (sorted > 0 || order_.size() <= kFew) {
    sort_keys(order_, sorted, &spare_);
    return order_.size();
  }
  std::nth_element(from, from + (kFew - 1), order_.end());
  std::sort(from, from + kFew);
  return kFew;
}

// The likeliest token's weight is exactly 1, so a weight is its ratio to it. It always stays.
void Sampler::keep_min_p(double min_p) {
  float floor = static_cast<float>(min_p);
  size_t kept = 0;
  total_ = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (static_cast<float>(weights_[i]) < floor) continue;
    total_ += weights_[i];
    ids_[kept] = ids_[i];
    weights_[kept++] = weights_[i];
  }
  ids_.resize(kept);
  weights_.resize(kept);
}

int32_t Sampler::draw(double uniform) const {
  double target = uniform * total_;
  double sum = 0;
  size_t last = 0;  // rounding never picks a token of weight zero
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (sum > target) return ids_[i];
    if (weights_[i] > 0) last = i;
  }
  return ids_[last];
}

std::vector<TokenLogprob> Sampler::logprobs(std::span<const float> logits, float max, int32_t token,
                                            int32_t top) {
  double log_total = static_cast<double>(max) + std::log(sum_exp_below(logits, max));
  auto entry = [&](int32_t id) {
    return TokenLogprob{id, static_cast<double>(logits[id]) - log_total,
                        1 + count_greater(logits, logits[id])};
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
