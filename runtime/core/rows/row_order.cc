#include "runtime/core/rows/row_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/core/rows/descending_key.h"

namespace tensorwright {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the lowest value above a bound, and -inf for -inf, which stands for no bound.
float above(float bound) { return bound == -kInfinity ? bound : std::nextafter(bound, kInfinity); }

}  // namespace

std::optional<int32_t> RowOrder::draw(RowEstimate* estimate, double top_p, double uniform) {
  estimate_ = estimate;
  // A token is the last that stays if the weight after it is at most `bound` of the whole in fp32: at most
  // half way from `bound` to the next fp32 number.
  const float bound = static_cast<float>(1.0 - top_p);
  const double kept = 1 - (static_cast<double>(bound) + std::nextafter(bound, kInfinity)) / 2;
  Part likeliest = take_likeliest(kept, uniform);
  const Cut cut = cut_;
  std::optional<Passed> last = pass(likeliest, kept * total(), kept * total_error() + sum_error());
  if (!last && estimate->sharpen()) {
    cut_ = cut;
    last = pass(likeliest, kept * total(), kept * total_error() + sum_error());
  }
  if (!last) return std::nullopt;
  cut_ = cut;
  const std::optional<Passed> drawn = pass(likeliest, uniform * last->upto, sum_error());
  return drawn ? std::optional(drawn->id) : std::nullopt;
}

double RowOrder::total() const { return (estimate_->total().low + estimate_->total().high) / 2; }

double RowOrder::total_error() const { return (estimate_->total().high - estimate_->total().low) / 2; }

// Returns the error of a sum of weights in double, here and in the definition.
double RowOrder::sum_error() const {
  return 3 * total() * wide_error(estimate_->row().size(), estimate_->scaled_max());
}

// Collects the likeliest tokens, which have more than the share `kept` of the total, and cuts them near the
// end of that share and near the token that `uniform` draws.
RowOrder::Part RowOrder::take_likeliest(double kept, double uniform) {
  float low = guess_lowest(kept);
  for (;;) {
    likeliest_.clear();
    estimate_->collect(low, &likeliest_);
    Part part{{likeliest_.values.data(), likeliest_.size}, {likeliest_.ids.data(), likeliest_.size}};
    const double unit = 1 / guessed_, token = uniform * kept * unit, last = kept * unit;
    cut_by_shares(part, {token - 0.06, token - 0.02, token + 0.02, token + 0.06, last - 0.03, last - 0.01,
                         last + 0.01});
    part.sum = cut_.sums.back();
    if (part.sum > kept * total() + kept * total_error() + sum_error() || low == -kInfinity) return part;
    const double scaled_max = static_cast<double>(estimate_->scaled_max());
    const double distance = scaled_max - static_cast<double>(low / estimate_->temperature());
    low = distance < 30 ? above(usable_from(scaled_max - 1.5 * distance - 1)) : -kInfinity;
    guessed_ = 1;
  }
}

// Guesses the lowest logit to take, from the weight that a sample of the row has below it. The sample may
// miss weight that few tokens have at the top, but not weight that many tokens have at the bottom.
float RowOrder::guess_lowest(double kept) {
  constexpr size_t kSample = 4096;
  const std::span<const float> row = estimate_->row();
  const size_t step = row.size() <= kSample ? size_t{TW_LANES} : row.size() / (kSample / TW_LANES);
  sample_.clear();
  for (size_t i = 0; i < row.size(); i += step) {
    const auto some = row.subspan(i, std::min<size_t>(TW_LANES, row.size() - i));
    sample_.insert(sample_.end(), some.begin(), some.end());
  }
  const double scaled_max = static_cast<double>(estimate_->scaled_max());
  const double unit = static_cast<double>(row.size()) / static_cast<double>(sample_.size()) / total();
  double distance = 0;
  size_t i = 0;
  for (double step_down : {3.0, 3.0 / 7, 3.0 / 49}) {  // steps between two bounds of the last
    for (i = 0; i + 1 < TW_ROW_BOUNDS; ++i)
      cut_.bounds[i] = usable_from(scaled_max - distance - step_down * static_cast<double>(i + 1));
    sum_above(sample_);
    guessed_ = 1;
    for (i = 0; i + 1 < TW_ROW_BOUNDS; ++i) {
      const double below = (cut_.sums.back() - cut_.sums[i]) * unit;
      if (below >= 0.9 * (1 - kept)) continue;
      guessed_ = 1 - below;
      break;
    }
    distance += step_down * static_cast<double>(i);
  }
  return above(cut_.bounds[i]);
}

// Sets bounds above which about these shares of the part's sum lie, by a sample, and takes the sums above the
// bounds.
void RowOrder::cut_by_shares(const Part& part, Shares shares) {
  const size_t wanted = std::clamp<size_t>(part.values.size() / 32, 64, 512);
  const size_t step = std::max<size_t>(1, part.values.size() / wanted);
  sample_.clear();
  for (size_t i = 0; i < part.values.size(); i += step) sample_.push_back(part.values[i]);
  std::ranges::sort(sample_, std::greater<>());
  scores_.resize(sample_.size()), weights_.resize(sample_.size());
  divide_row(sample_, estimate_->temperature(), scores_.data());
  const double total = exp_below(scores_, estimate_->scaled_max(), weights_.data());
  std::ranges::sort(shares);
  size_t at = 0;
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    while (at + 1 < sample_.size() && sum < shares[i] * total) sum += weights_[at++];
    cut_.bounds[i] = usable(sample_[at]);
  }
  sum_above(part.values);
}

// Sets bounds at equal distances and takes the sums above them. Such bounds always part values that are not
// equal.
void RowOrder::cut_evenly(const Part& part) {
  const auto [low, high] = std::ranges::minmax(part.values);
  const float step =
      (high - std::max(low, -std::numeric_limits<float>::max())) / static_cast<float>(TW_ROW_BOUNDS);
  for (size_t i = 0; i + 1 < TW_ROW_BOUNDS; ++i)
    cut_.bounds[i] = usable(high - step * static_cast<float>(i + 1));
  sum_above(part.values);
}

void RowOrder::sum_above(std::span<const float> values) {
  cut_.bounds.back() = -kInfinity;
  cut_.sums.fill(0);
  for (size_t i = 0; i < values.size(); i += TW_ROW_BLOCK) {
    logit_loops().weights_above(
        values.data() + i, static_cast<int64_t>(std::min<size_t>(TW_ROW_BLOCK, values.size() - i)),
        estimate_->temperature(), static_cast<double>(estimate_->scaled_max()) * kLog2e, TW_ROW_BOUNDS,
        cut_.bounds.data(), cut_.sums.data());
  }
}

// Raises a bound until it parts no values that the temperature makes equal, because the order of equal scores
// is that of their places.
float RowOrder::usable(float bound) const {
  const float temperature = estimate_->temperature();
  for (float next = std::nextafter(bound, kInfinity); next / temperature == bound / temperature;
       next = std::nextafter(next, kInfinity)) {
    bound = next;
  }
  return bound;
}

float RowOrder::usable_from(double score) const {
  return usable(static_cast<float>(score * static_cast<double>(estimate_->temperature())));
}

// Returns the piece of the part in which the sum passes `target`. The part must have been cut.
RowOrder::Part RowOrder::narrow(const Part& part, double target, Collected* into) {
  size_t i = 0;
  while (i + 1 < TW_ROW_BOUNDS && part.above + cut_.sums[i] < target) ++i;
  const float low = above(cut_.bounds[i]);
  const float high = i == 0 ? kInfinity : cut_.bounds[i - 1];
  into->clear();
  for (size_t first = 0; first < part.values.size(); first += TW_ROW_BLOCK) {
    into->append(part.values.subspan(first, std::min<size_t>(TW_ROW_BLOCK, part.values.size() - first)), low,
                 high, static_cast<int32_t>(first));
  }
  for (size_t j = 0; j < into->size; ++j) into->ids[j] = part.ids[static_cast<size_t>(into->ids[j])];
  const double before = i == 0 ? 0 : cut_.sums[i - 1];
  return {{into->values.data(), into->size},
          {into->ids.data(), into->size},
          part.above + before,
          cut_.sums[i] - before};
}

// Returns the token with which the sum passes `target`. The part must have been cut.
std::optional<RowOrder::Passed> RowOrder::pass(Part part, double target, double error) {
  constexpr size_t kFew = 128;
  bool even = false;
  for (int i = 0; part.values.size() > kFew; i = 1 - i) {
    const size_t size = part.values.size();
    part = narrow(part, target, &collected_[i]);
    // If even bounds leave as many values as before, these are ties.
    if (part.values.size() <= kFew || (even && part.values.size() == size)) break;
    even = part.values.size() > size / 2;
    const double share = (target - part.above) / part.sum;
    if (even) {
      cut_evenly(part);
    } else {
      cut_by_shares(part,
                    {share - 0.2, share - 0.1, share - 0.04, share, share + 0.04, share + 0.1, share + 0.2});
    }
  }
  return walk(part, target, error);
}

std::optional<RowOrder::Passed> RowOrder::walk(const Part& part, double target, double error) {
  const size_t count = part.values.size();
  max_sorted_ = std::max(max_sorted_, count);
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
    if (!(sum > target + error && before < target - error)) return std::nullopt;
    return Passed{part.ids[i], sum};
  }
  return std::nullopt;
}

}  // namespace tensorwright
