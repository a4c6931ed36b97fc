// rms_norm for an instruction set `Set` (Avx2, Avx512 or Neon): the registers hold 16 lane sums together, so
// that the bits are those of scalar.cc.
#ifndef TENSORWRIGHT_PLUGINS_RMS_NORM_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_RMS_NORM_VECTOR_H_

#include <math.h>
#include <stdint.h>

#include "plugins/common/vector.h"
#include "plugins/rms_norm/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns the sum of the squares of x or, with a residual, of x + residual, which it then writes to `sum`.
template <typename Set, bool kResidual>
inline float square_sum(const float* x, const float* residual, float* sum, int32_t width) {
  constexpr int kRegisters = TW_LANES / Set::kLanes;
  typename Set::Vector lanes[kRegisters];
  TW_UNROLL
  for (int i = 0; i < kRegisters; ++i) lanes[i] = Set::all(0.0f);
  for (int32_t c = 0; c < width; c += TW_LANES) {
    TW_UNROLL
    for (int i = 0; i < kRegisters; ++i) {
      const int32_t at = c + Set::kLanes * i, count = width - at;
      auto s = Set::load(x + at, count);
      if (kResidual) {
        s = Set::add(s, Set::load(residual + at, count));
        Set::store(sum, TW_F32, at, count, s);
      }
      lanes[i] = Set::fma(s, s, lanes[i]);
    }
  }
  return Set::tree_sum(lanes);
}

template <typename Set>
inline void normalize_rows(const tw_rms_norm_args* a) {
  const auto offset = Set::all(a->weight_offset);
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* x = a->x + row * a->x_stride;
    float squares;
    if (a->residual) {
      float* sum = a->sum + row * a->sum_stride;
      squares = square_sum<Set, true>(x, a->residual + row * a->residual_stride, sum, a->width);
      x = sum;
    } else {
      squares = square_sum<Set, false>(x, NULL, NULL, a->width);
    }
    const auto inverse = Set::all(1.0f / sqrtf(squares / (float)a->width + a->eps));
    for (int32_t c = 0; c < a->width; c += Set::kLanes) {
      const int32_t count = a->width - c;
      const auto w = Set::add(Set::load(a->w + c, count), offset);
      const auto y = Set::mul(Set::mul(Set::load(x + c, count), inverse), w);
      Set::store(a->y, a->y_dtype, row * a->y_stride + c, count, y);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_RMS_NORM_VECTOR_H_
