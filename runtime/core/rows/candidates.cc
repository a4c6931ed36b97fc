#include "runtime/core/rows/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "runtime/core/rows/descending_key.h"
#include "runtime/core/rows/logit_row.h"

namespace tensorwright {

namespace {

// In place of the scores of tokens whose weight is 0: those are 700 and more below the largest.
constexpr double kNoScore = -1000;
// The bins of keep_typical(): so many for a distance of 1, and so many in all, up to a distance of 16.
constexpr double kBinsPerUnit = 128;
constexpr int32_t kBins = 16 * 128;

// Sorts keys[from, end). Many keys are sorted by their digits, in far fewer steps than by comparisons.
void sort_keys(std::vector<uint64_t>& keys, size_t from, std::vector<uint64_t>* spare) {
  constexpr size_t kMany = 1024, kDigits = 1 << 11;
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
    if (place[in[0] >> shift & (kDigits - 1)] == n) continue;  // all keys have the same digit
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0u);
    for (size_t i = 0; i < n; ++i) out[place[in[i] >> shift & (kDigits - 1)]++] = in[i];
    std::swap(in, out);
  }
  if (in == spare->data()) std::copy_n(in, n, keys.data() + from);
}

}  // namespace

double Candidates::weigh(float max) {
  max_ = static_cast<double>(max);
  weights_.resize(scores.size());
  total_ = exp_below(scores, max, weights_.data());
  return total_;
}

// transformers sorts ascending and removes tokens, except the last one, while the cumulative probability is
// <= 1 - top_p. Seen from the other end, a token stays while (total - weight of the tokens after it) / total
// > 1 - top_p. The comparison is in fp32, as in transformers. Of equal scores the higher id stays, as with a
// stable ascending sort.
Kept Candidates::keep_top_p(double top_p, const Total& total, size_t total_tokens, bool more_wanted) {
  const float bound = static_cast<float>(1.0 - top_p);
  // A token that stays has a cumulative weight above bound * total, which is the sum of at most
  // `total_tokens` weights no larger than its own. So only weights above bound * total / total_tokens need
  // sorting. The slack covers the fp32 comparison.
  const double floor = bound * total.low / static_cast<double>(total_tokens) * (1 - 1e-6);
  order_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] >= floor) order_.push_back(descending_key(scores[i], static_cast<uint32_t>(i)));
  }
  double after = 0;
  size_t kept = 0, sorted = 0;
  kept_ids_.clear();
  kept_scores_.clear();
  kept_weights_.clear();
  const auto more = [&](double sum) { return static_cast<float>((sum - after) / sum) > bound; };
  for (; kept < order_.size(); ++kept) {
    if (kept > 0) {
      const bool stays = more(total.low);
      if (stays != more(total.high)) return Kept::unknown;
      if (!stays) break;
    }
    if (kept == sorted) sorted = sort_more(sorted);
    const size_t i = key_index(order_[kept]);
    after += weights_[i];
    kept_ids_.push_back(ids[i]);
    kept_scores_.push_back(scores[i]);
    kept_weights_.push_back(weights_[i]);
  }
  if (more_wanted && kept == order_.size() && more(total.high)) return Kept::all;
  ids.swap(kept_ids_);
  scores.swap(kept_scores_);
  weights_.swap(kept_weights_);
  total_ = after;
  return Kept::yes;
}

// Sorts the next keys of order_ after the first `sorted`, and returns how many are sorted now. Mostly few
// tokens stay, so the first call sorts only a few keys.
size_t Candidates::sort_more(size_t sorted) {
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

template <typename Keeps>
void Candidates::filter(const Keeps& keeps) {
  const size_t count = weights_.size();
  size_t kept = 0;
  double total = 0;
  int32_t* const id = ids.data();
  float* const score = scores.data();
  double* const weight = weights_.data();
  // There is no branch, as nothing can foresee who stays: 0 leaves the bits of a sum alone.
  for (size_t i = 0; i < count; ++i) {
    const bool stays = keeps(i);
    total += stays ? weight[i] : 0;
    id[kept] = id[i];
    score[kept] = score[i];
    weight[kept] = weight[i];
    kept += stays;
  }
  ids.resize(kept);
  scores.resize(kept);
  weights_.resize(kept);
  total_ = total;
}

// The likeliest token always stays.
void Candidates::keep_min_p(double min_p) {
  const float floor = static_cast<float>(min_p);
  filter([&](size_t i) { return static_cast<float>(weights_[i]) >= floor; });
}

// The information of a token with the score s is a constant - s, and the entropy is its mean over the
// distribution. So their difference is that of s and the mean of s. Scores are counted from the largest.
void Candidates::keep_typical(double mass) {
  const double mean = mean_score();
  bin_distances(mean);
  if (const std::optional<Nearest> last = guess_last_typical(mass, mean)) {
    const int32_t* const bin = bins_of_.data();
    filter([&](size_t i) {
      return bin[i] < last->bin ||
             (bin[i] == last->bin && weights_[i] > 0 && distance(i, mean) <= last->distance);
    });
  } else {
    const double far = last_typical(mass, mean);
    filter([&](size_t i) { return weights_[i] > 0 && distance(i, mean) <= far; });
  }
}

// Returns the mean of the scores over the distribution. The products are summed in eight lanes by place, and
// then in a fixed tree.
double Candidates::mean_score() const {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  const size_t count = weights_.size(), whole = count / kLanes * kLanes;
  const double* const weight = weights_.data();
  const float* const score = scores.data();
  // A weight of 0 takes a score that may be -inf.
  const auto product = [&](size_t i) {
    return weight[i] * std::max(static_cast<double>(score[i]) - max_, kNoScore);
  };
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += product(i + lane);
  }
  for (size_t i = whole; i < count; ++i) lanes[i - whole] += product(i);
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0] / total_;
}

// Returns how far the candidate's score is from the mean. For a weight of 0 it is large, and means nothing.
double Candidates::distance(size_t i, double mean) const {
  return std::abs(std::max(static_cast<double>(scores.data()[i]) - max_, kNoScore) - mean);
}

// Puts each candidate into the bin of its distance. A weight of 0 is further than all bins: its score is 700
// below the largest at least, and the mean is not below minus the logarithm of the number of tokens.
void Candidates::bin_distances(double mean) {
  const size_t count = weights_.size();
  bins_of_.resize(count);
  int32_t* const bin = bins_of_.data();
  for (size_t i = 0; i < count; ++i) bin[i] = static_cast<int32_t>(distance(i, mean) * kBinsPerUnit);
}

// Returns the last candidate that stays, if it does not depend on how the sums of the definition are rounded.
// Weights are added up by their bins, and only the candidates of the bin in which the sum passes the mass are
// sorted. A candidate that is further than the last bin hardly ever counts.
std::optional<Candidates::Nearest> Candidates::guess_last_typical(double mass, double mean) {
  const size_t count = weights_.size();
  const double* const weight = weights_.data();
  const int32_t* const bin_of = bins_of_.data();
  sums_.assign(kBins, 0);
  double* const sums = sums_.data();
  for (size_t i = 0; i < count; ++i) {
    if (bin_of[i] < kBins) sums[bin_of[i]] += weight[i];
  }
  // Both sums, of the definition and of the bins, are rounded once for each candidate.
  const double error = total_ * static_cast<double>(count) * 0x1p-51;
  const double target = mass * total_;
  int32_t bin = 0;
  double nearer = 0;  // the sum of the bins before
  while (bin < kBins && nearer + sums[bin] < target) nearer += sums[bin++];
  if (bin == kBins) return std::nullopt;
  nearest_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (bin_of[i] == bin && weight[i] > 0) nearest_.emplace_back(distance(i, mean), weight[i]);
  }
  std::ranges::sort(nearest_);
  double sum = nearer;
  for (size_t first = 0; first < nearest_.size();) {  // candidates that are as far as each other, by turns
    const double before = sum, far = nearest_[first].first;
    for (; first < nearest_.size() && nearest_[first].first == far; ++first) sum += nearest_[first].second;
    if (sum < target) continue;
    if (before < target - error && sum > target + error) return Nearest{bin, far};
    return std::nullopt;
  }
  return std::nullopt;
}

// Returns the distance of the candidate with which the nearest ones reach `mass`, where they are summed in
// order of their distance, of equal ones the lightest first. This is the definition.
double Candidates::last_typical(double mass, double mean) {
  ++typical_sorted_;
  nearest_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0) nearest_.emplace_back(distance(i, mean), weights_[i]);
  }
  std::ranges::sort(nearest_);
  double sum = 0;
  for (const auto& [far, weight] : nearest_) {
    if ((sum += weight) >= mass * total_) return far;
  }
  return nearest_.back().first;
}

void Candidates::exclude_top(double threshold) {
  const double bar = threshold * total_;
  const double* const weight = weights_.data();
  const size_t count = weights_.size();
  size_t last = count, above = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weight[i] < bar || weight[i] <= 0) continue;
    ++above;
    const bool later =
        last == count || weight[i] < weight[last] || (weight[i] == weight[last] && ids[i] < ids[last]);
    if (later) last = i;
  }
  if (above < 2) return;
  filter([&](size_t i) { return i == last || (weight[i] < bar && weight[i] > 0); });
}

int32_t Candidates::draw(double uniform) const {
  const double target = uniform * total_;
  const double* const weight = weights_.data();
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weight[i];
    if (sum > target) return ids[i];
  }
  // Rounding never picks a token of weight zero.
  size_t last = weights_.size();
  while (last > 1 && weight[last - 1] <= 0) --last;
  return ids[last - 1];
}

}  // namespace tensorwright
