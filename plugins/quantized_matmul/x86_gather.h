// Lays out weights for vector_weights.h, for AVX2 and AVX-512.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_GATHER_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_GATHER_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/quantized_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Loads 8 columns of a row from column `at` on; columns past the end are zeros.
TW_INLINE __m256 columns(const tw_quantize_weights_args* a, int64_t row, int64_t at) {
  if (row >= a->rows) return _mm256_setzero_ps();
  const int64_t from = row * a->w_stride + at;
  return a->w_dtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)a->w + from, a->k - at)
                               : tw_load_avx2((const float*)a->w + from, a->k - at);
}

// Transposes 8 rows of 8 to 8 columns of 8, 16 floats apart.
TW_INLINE void transpose(const __m256 (&row)[8], float* to) {
  __m256 pair[8], quad[8];
  TW_UNROLL
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  TW_UNROLL
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  TW_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * TW_LANES, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * TW_LANES, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

// Gathers columns [begin, begin + size) of the rows as [size][16], with size rounded up to 8. Columns that do
// not exist are zeros.
inline void gather_columns(const tw_quantize_weights_args* a, int64_t begin, int64_t size, float* x) {
  for (int64_t k = 0; k < size; k += 8) {
    for (int64_t half = 0; half < 2; ++half) {
      __m256 row[8];
      TW_UNROLL
      for (int i = 0; i < 8; ++i) row[i] = columns(a, half * 8 + i, begin + k);
      float block[8 * TW_LANES];  // a last group of 4 has no room for 8
      transpose(row, size - k >= 8 ? x + k * TW_LANES + half * 8 : block);
      for (int64_t e = 0; size - k < 8 && e < size - k; ++e)
        memcpy(x + (k + e) * TW_LANES + half * 8, block + e * TW_LANES, 8 * sizeof(float));
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_GATHER_H_
