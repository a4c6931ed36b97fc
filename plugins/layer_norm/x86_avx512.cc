// layer_norm on AVX-512: one register holds the 16 lane sums, so that the bits are those of scalar.cc.
#include "plugins/common/x86_avx512.h"

#include <math.h>
#include <stdint.h>

#include "plugins/layer_norm/kernel.h"

namespace tensorwright {
namespace {

inline float sum_of(const float* x, int32_t width) {
  __m512 lanes = _mm512_setzero_ps();
  for (int32_t c = 0; c < width; c += TW_LANES) {
    lanes = _mm512_add_ps(lanes, _mm512_maskz_loadu_ps(tw_lanes_avx512(width - c), x + c));
  }
  return tw_tree_sum_avx512(lanes);
}

inline float add_and_sum(const float* x, const float* residual, float* sum, int32_t width) {
  __m512 lanes = _mm512_setzero_ps();
  for (int32_t c = 0; c < width; c += TW_LANES) {
    const __mmask16 there = tw_lanes_avx512(width - c);
    const __m512 s =
        _mm512_add_ps(_mm512_maskz_loadu_ps(there, x + c), _mm512_maskz_loadu_ps(there, residual + c));
    _mm512_mask_storeu_ps(sum + c, there, s);
    lanes = _mm512_add_ps(lanes, s);
  }
  return tw_tree_sum_avx512(lanes);
}

// Lanes past the end do not subtract the mean, so they add nothing.
inline float centred_square_sum(const float* x, int32_t width, __m512 mean) {
  __m512 lanes = _mm512_setzero_ps();
  for (int32_t c = 0; c < width; c += TW_LANES) {
    const __mmask16 there = tw_lanes_avx512(width - c);
    const __m512 s = _mm512_maskz_sub_ps(there, _mm512_maskz_loadu_ps(there, x + c), mean);
    lanes = _mm512_fmadd_ps(s, s, lanes);
  }
  return tw_tree_sum_avx512(lanes);
}

}  // namespace

void layer_norm_avx512(const tw_layer_norm_args* a) {
  const __m512 offset = _mm512_set1_ps(a->weight_offset);
  const float width = (float)a->width;
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* x = a->x + row * a->x_stride;
    float total;
    if (a->residual) {
      float* sum = a->sum + row * a->sum_stride;
      total = add_and_sum(x, a->residual + row * a->residual_stride, sum, a->width);
      x = sum;
    } else {
      total = sum_of(x, a->width);
    }
    const __m512 mean = _mm512_set1_ps(total / width);
    const float variance = centred_square_sum(x, a->width, mean) / width;
    const __m512 inverse = _mm512_set1_ps(1.0f / sqrtf(variance + a->eps));
    for (int32_t c = 0; c < a->width; c += TW_LANES) {
      const __mmask16 lanes = tw_lanes_avx512(a->width - c);
      const __m512 w = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, a->w + c), offset);
      const __m512 b = a->b ? _mm512_maskz_loadu_ps(lanes, a->b + c) : _mm512_setzero_ps();
      const __m512 centred = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + c), mean);
      const __m512 y = _mm512_fmadd_ps(_mm512_mul_ps(centred, inverse), w, b);
      tw_store_avx512(a->y, a->y_dtype, row * a->y_stride + c, lanes, y);
    }
  }
}

}  // namespace tensorwright
