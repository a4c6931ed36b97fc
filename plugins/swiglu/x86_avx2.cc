// swiglu for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/swiglu/kernel.h"

extern "C" void tw_swiglu_avx2(const tw_swiglu_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* gate = a->x + row * a->x_stride;
    const float* up = gate + a->width;
    for (int64_t c = 0; c < a->width; c += TW_LANES_AVX2) {
      const int64_t count = a->width - c;
      const __m256 g = tw_load_avx2(gate + c, count), u = tw_load_avx2(up + c, count);
      tw_store_avx2(a->y, a->y_dtype, row * a->y_stride + c, count, _mm256_mul_ps(tw_silu_avx2(g), u));
    }
  }
}
