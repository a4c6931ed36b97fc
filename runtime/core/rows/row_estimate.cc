#include "runtime/core/rows/row_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tensorwright {

namespace {

// Bounds the error of a sum that plugins/logits estimates in float, per unit of the sum: 2^-23 for each
// weight, as much for the two additions in float, and the rest for the additions in double, here and in the
// definition.
constexpr double kFloatError = 1.25 * 0x1p-22;
// The same bound for blocks that plugins/logits marks as rough.
constexpr double kRoughError = 0x1p-4;

}  // namespace

bool RowEstimate::read(std::span<const float> row, float temperature) {
  constexpr float kMaxScore = 65536;  // the largest score; beyond it the fraction of an exponent has few bits
  row_ = row;
  temperature_ = temperature;
  if (!(temperature > 1e-6f && temperature < 1e6f)) return false;
  blocks_.resize((row.size() + TW_ROW_BLOCK - 1) / TW_ROW_BLOCK);
  if (logit_loops().weigh(row.data(), static_cast<int64_t>(row.size()), temperature, blocks_.data()))
    return false;
  max_ = blocks_[0].max;
  for (const tw_row_block& block : blocks_) max_ = std::max(max_, block.max);
  scaled_max_ = max_ / temperature;
  if (!(std::abs(scaled_max_) < kMaxScore)) return false;
  sum_blocks();
  return true;
}

// Brings the sums of the blocks to one unit: they are sums of exp(score) / 2^power, and the definition sums
// exp(score - largest score).
void RowEstimate::sum_blocks() {
  sums_.resize(blocks_.size());
  const double top = static_cast<double>(scaled_max_) * kLog2e;
  double rough = 0;
  total_ = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool empty = blocks_[i].max == -std::numeric_limits<float>::infinity();
    sums_[i] = empty ? 0 : blocks_[i].sum * std::exp2(static_cast<double>(blocks_[i].power) - top);
    total_ += sums_[i];
    if (blocks_[i].rough) rough += sums_[i];
  }
  error_ = total_ * kFloatError + rough * kRoughError;
  sharp_ = false;
}

// Sums the blocks again, in double.
bool RowEstimate::sharpen() {
  if (sharp_) return false;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  total_ = 0;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const std::span<const float> part = block(i);
    sums_[i] = 0;
    logit_loops().weights_above(part.data(), static_cast<int64_t>(part.size()), temperature_,
                                static_cast<double>(scaled_max_) * kLog2e, 1, &kLowest, &sums_[i]);
    total_ += sums_[i];
  }
  error_ = total_ * wide_error(row_.size(), scaled_max_);
  return sharp_ = true;
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
  std::optional<int32_t> place = draw_within_bound(uniform);
  if (!place && sharpen()) place = draw_within_bound(uniform);
  return place;
}

// Returns the token with whose weight the sum passes uniform * total, if the sum is more than the error above
// that target with the token, and more than the error below it before the token. The error of this comparison
// is one of the whole sum: with P the sum before the token and S the rest, it compares (1 - uniform) * P with
// uniform * S.
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
