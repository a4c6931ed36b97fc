#include "runtime/core/row_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/core/descending_key.h"

namespace tensorwright {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2e = 0x1.71547652b82fep+0;

}  // namespace

std::optional<int32_t> RowOrder::draw(const RowEstimate& estimate, double top_p, double uniform) {
  estimate_ = &estimate;
  // A token is the last that stays if the weight after it is at most this part of the whole in fp32: up to
  // half way to the next number.
  const float bound = static_cast<float>(1.0 - top_p);
  const double kept = 1 - (static_cast<double>(bound) + std::nextafter(bound, kInfinity)) / 2;
  Part all{estimate.row(), {}};
  const double token = uniform * kept;
  const std::array<double, TW_ROW_BOUNDS - 1> shares = {
      token - 0.06, token - 0.02, token + 0.02, token + 0.06, kept - 0.04, kept - 0.01, kept + 0.02};
  cut(all, shares);
  all.sum = sums_.back();
  error_ = 3 * all.sum * wide_error(all.values.size(), estimate.scaled_max());
  const auto bounds = bounds_;
  const auto sums = sums_;
  const std::optional<Passed> last = pass(all, kept * all.sum);
  if (!last) return std::nullopt;
  bounds_ = bounds, sums_ = sums;
  const std::optional<Passed> drawn = pass(all, uniform * last->upto);
  return drawn ? std::optional(drawn->id) : std::nullopt;
}

// Bounds of about these shares of the part's sum, by a sample, and the sums above them.
void RowOrder::cut(const Part& part, std::span<const double> shares) {
  constexpr size_t kSample = 512;
  const size_t step = std::max<size_t>(1, part.values.size() / kSample);
  sample_.clear();
  for (size_t i = 0; i < part.values.size(); i += step) sample_.push_back(part.values[i]);
  std::ranges::sort(sample_, std::greater<>());
  scores_.resize(sample_.size()), weights_.resize(sample_.size());
  divide_row(sample_, estimate_->temperature(), scores_.data());
  const double total = exp_below(scores_, estimate_->scaled_max(), weights_.data());
  std::array<double, TW_ROW_BOUNDS - 1> sorted;
  std::ranges::copy(shares, sorted.begin());
  std::ranges::sort(sorted);
  size_t at = 0;
  double sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    while (at + 1 < sample_.size() && sum < sorted[i] * total) sum += weights_[at++];
    bounds_[i] = usable(sample_[at]);
  }
  bounds_.back() = -kInfinity;
  sums_.fill(0);
  for (size_t i = 0; i < part.values.size(); i += TW_ROW_BLOCK) {
    logit_loops().weights_above(
        part.values.data() + i, static_cast<int64_t>(std::min<size_t>(TW_ROW_BLOCK, part.values.size() - i)),
        estimate_->temperature(), static_cast<double>(estimate_->scaled_max()) * kLog2e, bounds_.data(),
        sums_.data());
  }
}

// Of equal scores the place decides, so a bound may not part values that the temperature makes equal.
float RowOrder::usable(float bound) const {
  const float temperature = estimate_->temperature();
  for (float next = std::nextafter(bound, kInfinity); next / temperature == bound / temperature;
       next = std::nextafter(next, kInfinity)) {
    bound = next;
  }
  return bound;
}

// Those of the part, cut, among which the sum passes `target`.
RowOrder::Part RowOrder::narrow(const Part& part, double target, Collected* into) {
  size_t i = 0;
  while (i + 1 < bounds_.size() && part.above + sums_[i] < target) ++i;
  const float low = bounds_[i] == -kInfinity ? -kInfinity : std::nextafter(bounds_[i], kInfinity);
  const float high = i == 0 ? kInfinity : bounds_[i - 1];
  into->clear();
  for (size_t first = 0; first < part.values.size(); first += TW_ROW_BLOCK) {
    into->append(part.values.subspan(first, std::min<size_t>(TW_ROW_BLOCK, part.values.size() - first)), low,
                 high, static_cast<int32_t>(first));
  }
  if (!part.ids.empty()) {
    for (size_t j = 0; j < into->size; ++j) into->ids[j] = part.ids[static_cast<size_t>(into->ids[j])];
  }
  const double before = i == 0 ? 0 : sums_[i - 1];
  return {{into->values.data(), into->size},
          {into->ids.data(), into->size},
          part.above + before,
          sums_[i] - before};
}

// `part` has been cut.
std::optional<RowOrder::Passed> RowOrder::pass(Part part, double target) {
  constexpr size_t kFew = 512;
  for (int i = 0; part.values.size() > kFew; i = 1 - i) {
    const size_t size = part.values.size();
    part = narrow(part, target, &collected_[i]);
    if (part.values.size() <= kFew || part.values.size() > size / 8 * 7) break;  // as many: ties
    const double share = (target - part.above) / part.sum;
    const std::array<double, TW_ROW_BOUNDS - 1> shares = {share - 0.2,  share - 0.1, share - 0.04, share,
                                                          share + 0.04, share + 0.1, share + 0.2};
    cut(part, shares);
  }
  return walk(part, target);
}

std::optional<RowOrder::Passed> RowOrder::walk(const Part& part, double target) {
  const size_t count = part.values.size();
  scores_.resize(count), weights_.resize(count), order_.resize(count);
  divide_row(part.values, estimate_->temperature(), scores_.data());
  exp_below(scores_, estimate_->scaled_max(), weights_.data());
  for (size_t i = 0; i < count; ++i) order_[i] = descending_key(scores_[i], static_cast<uint32_t>(i));
  std::ranges::sort(order_);
  double sum = part.above;
  for (const uint64_t key : order_) {
    const size_t i = key_index(key);
    const double before = sum;
    sum += weights_[i];
    if (sum < target) continue;
    if (!(sum > target + error_ && before < target - error_)) return std::nullopt;
    return Passed{part.ids.empty() ? static_cast<int32_t>(i) : part.ids[i], sum};
  }
  return std::nullopt;
}

}  // namespace tensorwright
