// Answers questions about one row of logits. The order of the arithmetic is fixed, so the answer is a
// function of the row alone. The loops are those of plugins/logits.
#ifndef TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_
#define TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plugins/logits/kernel.h"

namespace tensorwright {

// Returns the loops of the selected instruction set.
const tw_logits_loops& logit_loops();

struct RowMax {
  float value;
  int32_t id;  // the lowest id with that value
};

// Throws Error{"NumericalError"} if the row has a NaN, has +inf, or is -inf throughout.
RowMax row_max(std::span<const float> row);

// out[i] = exp(x[i] - max) in double, with the same bits on every machine; exactly 0 where x[i] is 700 or
// more below max. All x must be <= max. Returns the sum of out, taken in order.
double exp_below(std::span<const float> x, float max, double* out);
// Returns the sum of the same weights, taken in eight lanes by index and then in a fixed tree.
double sum_exp_below(std::span<const float> x, float max);

// out[i] = row[i] / divisor.
void divide_row(std::span<const float> row, float divisor, float* out);

// out[i] = row[i] if bit i % 32 of mask[i / 32] is set, else -inf; out is not row.
void mask_row(std::span<const float> row, std::span<const uint32_t> mask, float* out);

// Returns the natural logarithm of the probability that the row gives to a token. Throws as row_max does.
double logprob(std::span<const float> row, int32_t token);

int32_t count_greater(std::span<const float> row, float value);

// Values of a row and their places in it: [size].
struct Collected {
  std::vector<float> values;
  std::vector<int32_t> ids;
  size_t size = 0;

  void clear() { size = 0; }
  // Appends the values of `part` that lie in [low, high], in order. The first value of `part` has the id
  // `first`.
  void append(std::span<const float> part, float low, float high, int32_t first);
};

// Finds the ids of the k largest values and of all that tie with the k-th, ascending; 1 <= k <= row size. It
// does not sort the row.
void top_ids(std::span<const float> row, int32_t k, std::vector<int32_t>* ids);

// Returns the k-th largest value.
float kth_largest(std::span<const float> row, int32_t k);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_LOGIT_ROW_H_
