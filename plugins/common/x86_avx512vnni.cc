// A loop that reaches the peak of int8 dot products.
#include "plugins/common/ceilings.h"
#include "plugins/common/x86_avx512.h"

extern "C" float tw_ceiling_int8_avx512vnni(int64_t iterations) {
  __m512i acc[16], a = _mm512_set1_epi8(1), b = a;
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_epi32(i);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  for (int i = 1; i < 16; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
  return (float)_mm512_reduce_add_epi32(acc[0]);
}
