#include "runtime/core/row_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorwright {

namespace {

constexpr double kLog2e = 0x1.71547652b82fep+0, kLn2 = 0x1.62e42fefa39efp-1;

// Bounds the error of a sum that plugins/logits estimates in float, per unit of the whole sum W, in which the
// largest weight is 1. A weight is 2^y, y <= 0:
//   2^-22            of the polynomial, 2^-23 of the two additions in float
//   |y| 2^-24 ln 2   each: of the product's rounding, of scale's and, unless the temperature is 1, of the
//                    definition's own division, where that of the maximum M adds |M| 2^-24
// The mean of |y| over the sum is at most log2(n / W), since no distribution over n has more than log2 n
// bits.
double float_error(double values, double total, float scaled_max, bool divided) {
  const double bits = std::max(0.0, std::log2(values / total));
  const double fixed =
      0x1p-22 + 0x1p-23 + (divided ? std::abs(static_cast<double>(scaled_max)) * 0x1p-24 : 0);
  return 1.25 * (fixed + bits * kLn2 * 3 * 0x1p-24);
}

}  // namespace

bool RowEstimate::read(std::span<const float> row, float temperature) {
  constexpr float kLargest = 1e6f;  // of exponents: beyond it the fraction of one has few bits
  row_ = row;
  temperature_ = temperature;
  scale_ = static_cast<float>(kLog2e / static_cast<double>(temperature));
  if (!(temperature > 1e-6f && temperature < 1e6f)) return false;
  blocks_.resize((row.size() + TW_ROW_BLOCK - 1) / TW_ROW_BLOCK);
  if (logit_loops().weigh(row.data(), static_cast<int64_t>(row.size()), scale_, blocks_.data())) return false;
  max_ = blocks_[0].max;
  for (const tw_row_block& block : blocks_) max_ = std::max(max_, block.max);
  if (!(std::abs(max_ * scale_) < kLargest)) return false;
  scaled_max_ = max_ / temperature;
  sum_blocks();
  return true;
}

// Brings the blocks' sums to one unit: the exponents that were taken are x * scale - reference, the
// definition's are (x - max) * scale.
void RowEstimate::sum_blocks() {
  sums_.resize(blocks_.size());
  const double top = static_cast<double>(max_) * static_cast<double>(scale_);
  total_ = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool empty = blocks_[i].max == -std::numeric_limits<float>::infinity();
    sums_[i] = empty ? 0 : blocks_[i].sum * std::exp2(static_cast<double>(blocks_[i].reference) - top);
    total_ += sums_[i];
  }
  error_ = total_ * float_error(static_cast<double>(row_.size()), total_, scaled_max_, temperature_ != 1);
}

void RowEstimate::sum_blocks_wide() {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const float bounds[TW_ROW_BOUNDS] = {kLowest, kLowest, kLowest, kLowest,
                                       kLowest, kLowest, kLowest, kLowest};
  total_ = 0;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const std::span<const float> part = block(i);
    double sums[TW_ROW_BOUNDS] = {};
    logit_loops().weights_above(part.data(), static_cast<int64_t>(part.size()), temperature_,
                                static_cast<double>(scaled_max_) * kLog2e, bounds, sums);
    total_ += sums_[i] = sums[0];
  }
  error_ = total_ * wide_error(row_.size(), scaled_max_);
}

std::span<const float> RowEstimate::block(size_t i) const {
  const size_t first = i * TW_ROW_BLOCK;
  return row_.subspan(first, std::min<size_t>(TW_ROW_BLOCK, row_.size() - first));
}

void RowEstimate::collect(float low, Collected* found) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].max >= low)
      found->append(block(i), low, std::numeric_limits<float>::infinity(),
                    static_cast<int32_t>(i * TW_ROW_BLOCK));
  }
}

std::optional<int32_t> RowEstimate::draw(double uniform) {
  if (std::optional<int32_t> place = draw_within_bound(uniform)) return place;
  sum_blocks_wide();
  return draw_within_bound(uniform);
}

// The token with whose weight the sum passes uniform * total, if it does so by more than the error, and was
// below by more than that before. The error of that comparison is one of the whole sum: with P the sum before
// the token and S the rest, it is (1 - uniform) * P against uniform * S.
std::optional<int32_t> RowEstimate::draw_within_bound(double uniform) {
  const double target = uniform * total_;
  double before = 0;
  size_t at = 0;
  while (at + 1 < sums_.size() && before + sums_[at] <= target) before += sums_[at++];
  const std::span<const float> part = block(at);
  scaled_.resize(TW_ROW_BLOCK), weights_.resize(TW_ROW_BLOCK);
  divide_row(part, temperature_, scaled_.data());
  const double exact = exp_below({scaled_.data(), part.size()}, scaled_max_, weights_.data());
  if (!(exact > 0)) return std::nullopt;
  const double unit = sums_[at] / exact;
  double sum = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    const double next = sum + weights_[i];
    if (before + next * unit > target) {
      const bool sure = before + next * unit > target + error_ && before + sum * unit < target - error_;
      return sure ? std::optional(static_cast<int32_t>(at * TW_ROW_BLOCK + i)) : std::nullopt;
    }
    sum = next;
  }
  return std::nullopt;
}

}  // namespace tensorwright
