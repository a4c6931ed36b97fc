// layer_norm for an instruction set `Set` (Avx2, Avx512 or Neon): the registers hold 16 lane sums together,
// so that the bits are those of scalar.cc.
#ifndef TENSORWRIGHT_PLUGINS_LAYER_NORM_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_LAYER_NORM_VECTOR_H_

#include <math.h>
#include <stdint.h>

#include "plugins/common/vector.h"
#include "plugins/layer_norm/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns the sum over the columns, as a tree of 16 lanes. add(lanes, c, count) returns the lanes with the
// columns from c on, of which `count` are left.
template <typename Set, typename Add>
TW_INLINE float sum_columns(int32_t width, Add add) {
  constexpr int kRegisters = TW_LANES / Set::kLanes;
  typename Set::Vector lanes[kRegisters];
  TW_UNROLL
  for (int i = 0; i < kRegisters; ++i) lanes[i] = Set::all(0.0f);
  for (int32_t c = 0; c < width; c += TW_LANES) {
    TW_UNROLL
    for (int i = 0; i < kRegisters; ++i) {
      const int32_t at = c + Set::kLanes * i;
      lanes[i] = add(lanes[i], at, width - at);
    }
  }
  return Set::tree_sum(lanes);
}

template <typename Set, typename Vector = typename Set::Vector>
inline float sum_of(const float* x, int32_t width) {
  return sum_columns<Set>(width, [=](Vector lanes, int32_t c, int32_t count)
                                     TW_ALWAYS { return Set::add(lanes, Set::load(x + c, count)); });
}

template <typename Set, typename Vector = typename Set::Vector>
inline float add_and_sum(const float* x, const float* residual, float* sum, int32_t width) {
  return sum_columns<Set>(width, [=](Vector lanes, int32_t c, int32_t count) TW_ALWAYS {
    const Vector s = Set::add(Set::load(x + c, count), Set::load(residual + c, count));
    Set::store(sum, TW_F32, c, count, s);
    return Set::add(lanes, s);
  });
}

// Lanes past the end do not subtract the mean, so they add nothing.
template <typename Set, typename Vector = typename Set::Vector>
inline float centred_square_sum(const float* x, int32_t width, Vector mean) {
  return sum_columns<Set>(width, [=](Vector lanes, int32_t c, int32_t count) TW_ALWAYS {
    const Vector s = Set::first(Set::sub(Set::load(x + c, count), mean), count);
    return Set::fma(s, s, lanes);
  });
}

template <typename Set>
inline void normalize_rows(const tw_layer_norm_args* a) {
  const auto offset = Set::all(a->weight_offset);
  const float width = (float)a->width;
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* x = a->x + row * a->x_stride;
    float total;
    if (a->residual) {
      float* sum = a->sum + row * a->sum_stride;
      total = add_and_sum<Set>(x, a->residual + row * a->residual_stride, sum, a->width);
      x = sum;
    } else {
      total = sum_of<Set>(x, a->width);
    }
    const auto mean = Set::all(total / width);
    const float variance = centred_square_sum<Set>(x, a->width, mean) / width;
    const auto inverse = Set::all(1.0f / sqrtf(variance + a->eps));
    for (int32_t c = 0; c < a->width; c += Set::kLanes) {
      const int32_t count = a->width - c;
      const auto w = Set::add(Set::load(a->w + c, count), offset);
      const auto b = a->b ? Set::load(a->b + c, count) : Set::all(0.0f);
      const auto scaled = Set::mul(Set::sub(Set::load(x + c, count), mean), inverse);
      Set::store(a->y, a->y_dtype, row * a->y_stride + c, count, Set::fma(scaled, w, b));
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_LAYER_NORM_VECTOR_H_
