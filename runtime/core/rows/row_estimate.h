// The sum of a row's weights, and a draw by them, from estimates with a bound: several times faster than the
// definition, which sums in order and in double. What the bound leaves open is said, never guessed.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ROW_ESTIMATE_H_
#define TENSORWRIGHT_RUNTIME_CORE_ROW_ESTIMATE_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/rows/candidates.h"
#include "runtime/core/rows/logit_row.h"

namespace tensorwright {

class RowEstimate {
 public:
  // Reads the row, once. False if it has no distribution at this temperature, or values so large that nothing
  // is estimated: the definition has to answer. The row must live as long as what is asked about it.
  bool read(std::span<const float> row, float temperature);

  // What follows is of the row that was read.
  float max() const { return max_; }                // of the row
  float scaled_max() const { return scaled_max_; }  // divided by the temperature
  Total total() const { return {total_ - error_, total_ + error_}; }
  // Takes the sums again, better; false if they are as good as estimates get.
  bool sharpen();
  // Appends the values that are at least `low`.
  void collect(float low, Collected* found) const;
  // The place of the token that the definition draws from all, by a number in [0, 1).
  std::optional<int32_t> draw(double uniform);

  std::span<const float> row() const { return row_; }
  float temperature() const { return temperature_; }

 private:
  std::span<const float> block(size_t i) const;
  void sum_blocks();
  std::optional<int32_t> draw_within_bound(double uniform);

  std::span<const float> row_;
  float temperature_ = 1, max_ = 0, scaled_max_ = 0;
  bool sharp_ = false;                // whether the sums were taken in double
  std::vector<tw_row_block> blocks_;  // of TW_ROW_BLOCK values
  std::vector<double> sums_;          // [blocks] of weights, the largest weight being 1
  double total_ = 0, error_ = 0;      // of sums_; how far that, or a part of it, may be from the definition's
  std::vector<float> scaled_;         // [TW_ROW_BLOCK]
  std::vector<double> weights_;       // [TW_ROW_BLOCK]
};

// Bounds the error of a sum that plugins/logits estimates in double, per unit of the whole sum of n weights:
// 2^-34 of the polynomial, 2^-53 for each addition, here and in the definition, and what the rounding of the
// maximum's exponent makes.
inline double wide_error(size_t n, float scaled_max) {
  return 0x1p-34 + static_cast<double>(n) * 0x1p-51 + std::abs(static_cast<double>(scaled_max)) * 0x1p-51;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_ESTIMATE_H_
