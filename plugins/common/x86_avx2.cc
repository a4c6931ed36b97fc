// Loops that reach the read bandwidth, the fp32 peak and the int8 peak of AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/common/ceilings.h"

extern "C" float tw_ceiling_read_avx2(const void* data, size_t bytes) {
  const float* p = (const float*)data;
  __m256 sum[8];
  for (int j = 0; j < 8; ++j) sum[j] = _mm256_setzero_ps();
  for (size_t i = 0; i < bytes / sizeof(float); i += 64) {
    for (int j = 0; j < 8; ++j) sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(p + i + 8 * j));
  }
  for (int j = 2; j < 8; ++j) sum[j % 2] = _mm256_add_ps(sum[j % 2], sum[j]);
  return tw_tree_sum_avx2(sum[0], sum[1]);
}

extern "C" float tw_ceiling_fma_avx2(int64_t iterations) {
  __m256 acc[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps((float)i);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(a, b, acc[i]);
    __asm__ volatile("" : "+x"(a), "+x"(b));  // keeps the compiler from hoisting the product
  }
  for (int i = 2; i < 12; ++i) acc[i % 2] = _mm256_add_ps(acc[i % 2], acc[i]);
  return tw_tree_sum_avx2(acc[0], acc[1]);
}

extern "C" float tw_ceiling_int8_avx2(int64_t iterations) {
  __m256i acc[8], a = _mm256_set1_epi8(1), b = a;
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 8; ++i) acc[i] = _mm256_set1_epi32(i);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 8; ++i) {
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
      __asm__ volatile("" : "+x"(a));  // keeps the compiler from computing the product only once
    }
  }
  for (int i = 1; i < 8; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
  return (float)_mm256_extract_epi32(acc[0], 0);
}
