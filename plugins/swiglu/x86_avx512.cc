// swiglu for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/swiglu/kernel.h"

extern "C" void tw_swiglu_avx512(const tw_swiglu_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* gate = a->x + row * a->x_stride;
    const float* up = gate + a->width;
    for (int64_t c = 0; c < a->width; c += 16) {
      const __mmask16 lanes = tw_lanes_avx512(a->width - c);
      const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + c), u = _mm512_maskz_loadu_ps(lanes, up + c);
      tw_store_avx512(a->y, a->y_dtype, row * a->y_stride + c, lanes, _mm512_mul_ps(tw_silu_avx512(g), u));
    }
  }
}
