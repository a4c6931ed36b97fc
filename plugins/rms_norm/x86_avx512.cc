// rms_norm on AVX-512: one register of 16 lane sums, so that the bits are those of scalar.cc.
#include "plugins/common/x86_avx512.h"

#include <math.h>
#include <stdint.h>

#include "plugins/rms_norm/kernel.h"

namespace tensorwright {
namespace {

inline float tree_sum(__m512 lanes) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

inline float square_sum(const float* x, int32_t width) {
  __m512 lanes = _mm512_setzero_ps();
  int32_t c = 0;
  for (; c + TW_LANES <= width; c += TW_LANES) {
    const __m512 s = _mm512_loadu_ps(x + c);
    lanes = _mm512_fmadd_ps(s, s, lanes);
  }
  const __m512 s = _mm512_maskz_loadu_ps(tw_lanes_avx512(width - c), x + c);
  return tree_sum(_mm512_fmadd_ps(s, s, lanes));
}

inline float add_and_square_sum(const float* x, const float* residual, float* sum, int32_t width) {
  __m512 lanes = _mm512_setzero_ps();
  int32_t c = 0;
  for (; c + TW_LANES <= width; c += TW_LANES) {
    const __m512 s = _mm512_add_ps(_mm512_loadu_ps(x + c), _mm512_loadu_ps(residual + c));
    _mm512_storeu_ps(sum + c, s);
    lanes = _mm512_fmadd_ps(s, s, lanes);
  }
  const __mmask16 tail = tw_lanes_avx512(width - c);
  const __m512 s =
      _mm512_add_ps(_mm512_maskz_loadu_ps(tail, x + c), _mm512_maskz_loadu_ps(tail, residual + c));
  _mm512_mask_storeu_ps(sum + c, tail, s);
  return tree_sum(_mm512_fmadd_ps(s, s, lanes));
}

}  // namespace

void rms_norm_avx512(const tw_rms_norm_args* a) {
  const __m512 offset = _mm512_set1_ps(a->weight_offset);
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* x = a->x + row * a->x_stride;
    float squares;
    if (a->residual) {
      float* sum = a->sum + row * a->sum_stride;
      squares = add_and_square_sum(x, a->residual + row * a->residual_stride, sum, a->width);
      x = sum;
    } else {
      squares = square_sum(x, a->width);
    }
    const __m512 inverse = _mm512_set1_ps(1.0f / sqrtf(squares / (float)a->width + a->eps));
    for (int32_t c = 0; c < a->width; c += TW_LANES) {
      const __mmask16 lanes = tw_lanes_avx512(a->width - c);
      const __m512 w = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, a->w + c), offset);
      const __m512 y = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + c), inverse), w);
      tw_store_avx512(a->y, a->y_dtype, row * a->y_stride + c, lanes, y);
    }
  }
}

}  // namespace tensorwright
