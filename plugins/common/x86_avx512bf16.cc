// A loop that reaches the peak of bf16 dot products.
#include "plugins/common/ceilings.h"
#include "plugins/common/x86_avx512.h"

extern "C" float tw_ceiling_bf16_avx512bf16(int64_t iterations) {
  __m512 acc[16];
  __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = a;
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_ps((float)i);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  for (int i = 1; i < 16; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_reduce_add_ps(acc[0]);
}
