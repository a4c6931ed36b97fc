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
    kept_weights_.push_back(weights_[i]);
  }
  if (more_wanted && kept == order_.size() && more(total.high)) return Kept::all;
  ids.swap(kept_ids_);
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
  size_t kept = 0;
  double total = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!keeps(i)) continue;
    total += weights_[i];
    ids[kept] = ids[i];
    weights_[kept++] = weights_[i];
  }
  ids.resize(kept);
  weights_.resize(kept);
  total_ = total;
}

// The likeliest token always stays.
void Candidates::keep_min_p(double min_p) {
  const float floor = static_cast<float>(min_p);
  filter([&](size_t i) { return static_cast<float>(weights_[i]) >= floor; });
}

// The information of a token with the weight w is ln(total / w), and the entropy is its mean over the
// distribution. So their difference is that of ln w and the mean of ln w.
void Candidates::keep_typical(double mass) {
  distances_.resize(weights_.size());
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    distances_[i] = weights_[i] > 0 ? std::log(weights_[i]) : 0;
    sum += weights_[i] * distances_[i];
  }
  const double mean = sum / total_;
  for (double& distance : distances_) distance = std::abs(distance - mean);
  const double last = last_typical(mass);
  filter([&](size_t i) { return weights_[i] > 0 && distances_[i] <= last; });
}

// Returns the distance of the candidate with which the nearest ones reach `mass`. It halves the candidates
// among which that one is, and sorts none.
double Candidates::last_typical(double mass) {
  nearest_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0) nearest_.emplace_back(distances_[i], weights_[i]);
  }
  auto from = nearest_.begin(), to = nearest_.end();
  double nearer = 0;  // the sum of the weights before `from`
  while (to - from > 1) {
    const auto middle = from + (to - from) / 2;
    std::nth_element(from, middle, to);
    double sum = nearer;
    for (auto each = from; each != middle; ++each) sum += each->second;
    if (sum >= mass * total_) {
      to = middle;
    } else {
      from = middle, nearer = sum;
    }
  }
  return from->first;
}

void Candidates::exclude_top(double threshold) {
  const double bar = threshold * total_;
  size_t last = weights_.size(), above = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] < bar || weights_[i] <= 0) continue;
    ++above;
    const bool later = last == weights_.size() || weights_[i] < weights_[last] ||
                       (weights_[i] == weights_[last] && ids[i] < ids[last]);
    if (later) last = i;
  }
  if (above < 2) return;
  filter([&](size_t i) { return i == last || (weights_[i] < bar && weights_[i] > 0); });
}

int32_t Candidates::draw(double uniform) const {
  const double target = uniform * total_;
  double sum = 0;
  size_t last = 0;  // rounding never picks a token of weight zero
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (sum > target) return ids[i];
    if (weights_[i] > 0) last = i;
  }
  return ids[last];
}

}  // namespace tensorwright
