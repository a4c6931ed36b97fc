// Estimates the sum of a row's weights, and a draw by these weights, with a bound of the error. This is
// several times faster than the definition, which sums in order and in double. Where the bound leaves the
// answer open, there is no answer.
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

inline constexpr double kLog2e = 0x1.71547652b82fep+0;  // the logarithm of e to the base 2

class RowEstimate {
 public:
  // Reads the row, once. Returns false if the row has no distribution at this temperature, or has values too
  // large for an estimate: the definition must answer then. The row must live as long as the other members
  // are called.
  bool read(std::span<const float> row, float temperature);

  // The following members describe the row that was read.
  float max() const { return max_; }                // the largest logit of the row
  float scaled_max() const { return scaled_max_; }  // the same, divided by the temperature
  Total total() const { return {total_ - error_, total_ + error_}; }
  // Takes the sums again in double. Returns false if they were taken in double already.
  bool sharpen();
  // Appends the values that are at least `low`.
  void collect(float low, Collected* found) const;
  // Returns the place of the token that the definition draws from the whole row by a number in [0, 1), if the
  // bound leaves no doubt.
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
  std::vector<tw_row_block> blocks_;  // each of TW_ROW_BLOCK values
  std::vector<double> sums_;          // [blocks]: sums of weights; the largest weight of the row is 1
  double total_ = 0, error_ = 0;      // the sum of sums_, and the error of it or of a part of it
  std::vector<float> scaled_;         // [TW_ROW_BLOCK]
  std::vector<double> weights_;       // [TW_ROW_BLOCK]
};

// Bounds the error of a sum that plugins/logits estimates in double, per unit of the whole sum of n weights:
// 2^-34 for the polynomial, 2^-53 for each addition, here and in the definition, and the rounding of the
// maximum's exponent.
inline double wide_error(size_t n, float scaled_max) {
  return 0x1p-34 + static_cast<double>(n) * 0x1p-51 + std::abs(static_cast<double>(scaled_max)) * 0x1p-51;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_ESTIMATE_H_
