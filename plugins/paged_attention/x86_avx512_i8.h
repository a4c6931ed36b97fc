// Scores over an int8 cache on AVX-512. K is widened to 16 bits, even and odd elements apart, and multiplied
// with q of 15 bits, so a lane's sum is exact in any order.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I8_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I8_H_

#include "plugins/paged_attention/x86_avx512.h"

namespace {

// Pairs::add(acc, a, b) returns acc plus the sum of each pair of 16-bit products.
template <typename Pairs>
struct ScoresI8 : PlainSteps<TW_I8> {
  using Q = int32_t;
  static constexpr int kDtype = TW_I8;
  static size_t packed_bytes(int head_dim) { return quantized_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_quantized(a, row, rows, to);
  }

  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    const float* q_scale = (const float*)q;
    const int fours = (head_dim + 3) / 4;
    __m512i acc[R][N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_si512();
    }
    q += R;
    for (int four = 0; four < fours; ++four, q += 2 * R) {
      __m512i even[N], odd[N];
      TW_UNROLL
      for (int n = 0; n < N; ++n) {
        const __m512i k = _mm512_loadu_si512(tile[n] + four * 64);
        _mm_prefetch(ahead[n] + four * 64, _MM_HINT_T1);
        even[n] = _mm512_srai_epi16(_mm512_slli_epi16(k, 8), 8);
        odd[n] = _mm512_srai_epi16(k, 8);
      }
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512i x = _mm512_set1_epi32(q[r]), y = _mm512_set1_epi32(q[R + r]);
        TW_UNROLL
        for (int n = 0; n < N; ++n) {
          acc[r][n] = Pairs::add(Pairs::add(acc[r][n], even[n], x), odd[n], y);
          __asm__("" : "+v"(acc[r][n]));  // keeps it in a register; otherwise GCC stores some in every turn
        }
      }
    }
    TW_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m512 k_scale = _mm512_loadu_ps((const float*)(tile[n] + fours * 64));
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 dot = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][n]), _mm512_set1_ps(q_scale[r]));
        _mm512_store_ps(out + r * kChunk * TW_LANES + n * TW_LANES, _mm512_mul_ps(dot, k_scale));
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I8_H_
