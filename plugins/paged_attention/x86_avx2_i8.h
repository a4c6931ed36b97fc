// Attention over an int8 cache on AVX2: the scores. K is widened to 16 bits, even and
// odd elements apart, and multiplied with q of 15 bits, so a lane's sum is exact.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I8_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I8_H_

#include "plugins/paged_attention/x86_avx2.h"

namespace {

struct ScoresI8 {
  using Way = Avx2Way;
  using Q = int32_t;
  static constexpr int kDtype = TW_I8;
  static size_t packed_bytes(int head_dim) { return quantized_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_quantized(a, row, rows, to);
  }

  template <int R, int N>
  static void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim, float* out) {
    const float* q_scale = (const float*)q;
    const int64_t bytes = (int64_t)tw_panel_bytes(TW_I8, (size_t)head_dim);
    __m256i acc[R][2 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) acc[r][i] = _mm256_setzero_si256();
    }
    q += R;
    for (int64_t at = 0; at < bytes; at += 64, q += 2 * R) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) {
        if (i % 2 == 0) _mm_prefetch(ahead[i / 2] + at, _MM_HINT_T1);
        const __m256i k = _mm256_loadu_si256((const __m256i*)(tile[i / 2] + at + i % 2 * 32));
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(k, 8), 8), odd = _mm256_srai_epi16(k, 8);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m256i x = _mm256_madd_epi16(even, _mm256_set1_epi32(q[r]));
          const __m256i y = _mm256_madd_epi16(odd, _mm256_set1_epi32(q[R + r]));
          acc[r][i] = _mm256_add_epi32(acc[r][i], _mm256_add_epi32(x, y));
        }
      }
    }
    TW_UNROLL
    for (int i = 0; i < 2 * N; ++i) {
      const __m256 k_scale = _mm256_loadu_ps((const float*)(tile[i / 2] + bytes) + i % 2 * 8);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 dot = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][i]), _mm256_set1_ps(q_scale[r]));
        _mm256_store_ps(out + r * kChunk * TW_LANES + i * 8, _mm256_mul_ps(dot, k_scale));
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I8_H_
