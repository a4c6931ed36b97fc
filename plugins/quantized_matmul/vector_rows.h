// quantize_rows for every instruction set: the scale of a group, and the loop over rows and groups.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_ROWS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_ROWS_H_

#include <math.h>
#include <string.h>

#include "plugins/quantized_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

struct RowScale {
  float inverse, scale;
};

// Returns the scale of a group. most: the bits of the largest magnitude, with NaN above infinity.
inline RowScale row_scale(uint32_t most) {
  if (most >= 0x7f800000u) return {0.0f, NAN};
  float largest;
  memcpy(&largest, &most, sizeof largest);
  if (!(largest >= 0x1p-120f)) return {0.0f, 0.0f};
  return {127.0f / largest, largest / 127.0f};
}

// Quantizes all groups of all rows. group(x, at, left, size, q, scale) quantizes one group and returns the
// sum of q.
template <typename Group>
inline void quantize_rows(const tw_quantize_rows_args* args, Group group) {
  const tw_quantize_rows_args a = *args;  // a copy: q has a character type and might alias it
  const int64_t size = a.size, groups = (a.k + size - 1) / size;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t at = i * size;
      a.sum[i * a.group_stride + row] =
          a.factor * group(a.x, row * a.x_stride + at, a.k - at, size, a.q + row * a.q_stride + at,
                           a.scale + i * a.group_stride + row);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_ROWS_H_
