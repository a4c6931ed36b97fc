// layer_norm on AVX2: two registers hold the 16 lane sums, so that the bits are those of scalar.cc.
#include "plugins/common/x86_avx2.h"

#include <math.h>
#include <stdint.h>

#include "plugins/layer_norm/kernel.h"

namespace tensorwright {
namespace {

inline float sum_of(const float* x, int32_t width) {
  __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int32_t c = 0; c < width; c += TW_LANES) {
    for (int i = 0; i < 2; ++i) {
      const int32_t at = c + 8 * i;
      lanes[i] = _mm256_add_ps(lanes[i], tw_load_avx2(x + at, width - at));
    }
  }
  return tw_tree_sum_avx2(lanes[0], lanes[1]);
}

inline float add_and_sum(const float* x, const float* residual, float* sum, int32_t width) {
  __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int32_t c = 0; c < width; c += TW_LANES) {
    for (int i = 0; i < 2; ++i) {
      const int32_t at = c + 8 * i, count = width - at;
      const __m256 s = _mm256_add_ps(tw_load_avx2(x + at, count), tw_load_avx2(residual + at, count));
      tw_store_avx2(sum, TW_F32, at, count, s);
      lanes[i] = _mm256_add_ps(lanes[i], s);
    }
  }
  return tw_tree_sum_avx2(lanes[0], lanes[1]);
}

// Lanes past the end do not subtract the mean, so they add nothing.
inline float centred_square_sum(const float* x, int32_t width, __m256 mean) {
  __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int32_t c = 0; c < width; c += TW_LANES) {
    for (int i = 0; i < 2; ++i) {
      const int32_t at = c + 8 * i, count = width - at;
      const __m256 there = _mm256_castsi256_ps(tw_lanes_avx2(count));
      const __m256 s = _mm256_and_ps(_mm256_sub_ps(tw_load_avx2(x + at, count), mean), there);
      lanes[i] = _mm256_fmadd_ps(s, s, lanes[i]);
    }
  }
  return tw_tree_sum_avx2(lanes[0], lanes[1]);
}

}  // namespace

void layer_norm_avx2(const tw_layer_norm_args* a) {
  const __m256 offset = _mm256_set1_ps(a->weight_offset);
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
    const __m256 mean = _mm256_set1_ps(total / width);
    const float variance = centred_square_sum(x, a->width, mean) / width;
    const __m256 inverse = _mm256_set1_ps(1.0f / sqrtf(variance + a->eps));
    for (int32_t c = 0; c < a->width; c += TW_LANES_AVX2) {
      const int32_t count = a->width - c;
      const __m256 w = _mm256_add_ps(tw_load_avx2(a->w + c, count), offset);
      const __m256 b = a->b ? tw_load_avx2(a->b + c, count) : _mm256_setzero_ps();
      const __m256 scaled = _mm256_mul_ps(_mm256_sub_ps(tw_load_avx2(x + c, count), mean), inverse);
      tw_store_avx2(a->y, a->y_dtype, row * a->y_stride + c, count, _mm256_fmadd_ps(scaled, w, b));
    }
  }
}

}  // namespace tensorwright
