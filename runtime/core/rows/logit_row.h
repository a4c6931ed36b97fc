// Questions about one row of logits, each answered in a fixed order so that the answer is a function of the
// row alone. The loops are those of plugins/logits.
#ifndef TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_
#define TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plugins/logits/kernel.h"

namespace tensorwright {

// Those of the selected instruction set.
const tw_logits_loops& logit_loops();

struct RowMax {
  float value;
  int32_t id;  // the lowest that has it
};

// Throws Error{"NumericalError"} if the row has a NaN, has +inf, or is -inf throughout.
RowMax row_max(std::span<const float> row);

// out[i] = exp(x[i] - max), all x <= max; exactly 0 from 700 below on. In double, the same bits on every
// machine. Returns their sum, taken in order.
double exp_below(std::span<const float> x, float max, double* out);
// The sum of those: eight lanes by index, then a fixed tree.
double sum_exp_below(std::span<const float> x, float max);

// out[i] = row[i] / divisor.
void divide_row(std::span<const float> row, float divisor, float* out);

// out[i] = row[i] if bit i % 32 of mask[i / 32] is set, else -inf; out is not row.
void mask_row(std::span<const float> row, std::span<const uint32_t> mask, float* out);

// The natural logarithm of the probability that the row gives to a token. Throws as row_max does.
double logprob(std::span<const float> row, int32_t token);

int32_t count_greater(std::span<const float> row, float value);

// Values of a row, and where they stand in it: [size].
struct Collected {
  std::vector<float> values;
  std::vector<int32_t> ids;
  size_t size = 0;

  void clear() { size = 0; }
  // Appends those of `part` in [low, high], in order; ids are counted from `first`.
  void append(std::span<const float> part, float low, float high, int32_t first);
};

// The ids of the k largest values and of all that tie with the k-th, ascending; 1 <= k <= row size. No sort
// of the row.
void top_ids(std::span<const float> row, int32_t k, std::vector<int32_t>* ids);

// The k-th largest value.
float kth_largest(std::span<const float> row, int32_t k);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_
