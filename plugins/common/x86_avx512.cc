// Loops that reach the read bandwidth and the fp32 peak of AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/common/ceilings.h"

extern "C" float tw_ceiling_read_avx512(const void* data, size_t bytes) {
  const float* p = (const float*)data;
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (size_t i = 0; i < bytes / sizeof(float); i += 64) {
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_add_ps(sum[j], _mm512_loadu_ps(p + i + 16 * j));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

extern "C" float tw_ceiling_fma_avx512(int64_t iterations) {
  __m512 acc[16], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_ps((float)i);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_fmadd_ps(a, b, acc[i]);
    __asm__ volatile("" : "+v"(a), "+v"(b));  // keeps the compiler from hoisting the product
  }
  for (int i = 1; i < 16; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_reduce_add_ps(acc[0]);
}
