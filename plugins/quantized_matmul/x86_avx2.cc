// quantized_matmul for AVX2. Same bits as scalar.cc.
//
// vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, which saturate. Nibbles are
// unsigned as stored (w + 8): 32 elements of K, 16 products of at most 15 * 127, fit (30480 < 32768); what
// the 8 adds to a sum is taken off its start. Bytes: |w| times x with the sign of w, two products (32258) at
// most.
#include "plugins/quantized_matmul/x86_ymm.h"

namespace {

TW_INLINE __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

struct Bytes {
  static constexpr int kBits = 8, kExcess = 0;

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines; n > 0; --n) {
      TW_UNROLL
      for (int i = 0; i < N; ++i) {
        const __m256i w = weights(c, g->w_stride, i), size = _mm256_abs_epi8(w);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m256i x = _mm256_sign_epi8(elements(c, g->x_stride, r, 0), w);
          acc[r][i] = _mm256_add_epi32(acc[r][i], widened(_mm256_maddubs_epi16(size, x)));
        }
        // Read x again: there are no registers to keep it in.
        if (R > 1) __asm__("" : "+r"(c.x[0]), "+r"(c.x[1]));
      }
      pin(acc);
      advance(c, 4);
    }
  }
};

TW_INLINE __m256i add_pairs(__m256i sum, __m256i x, __m256i w) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
}

struct Nibbles {
  static constexpr int kBits = 4, kExcess = 8;

  // 32 elements of K, in 16 bits.
  template <int R, int N>
  static TW_INLINE void sum_pairs(__m256i (&acc)[R][N], Cursor& c, const Group* g) {
    for (int n = 0; n < 4; ++n) {
      multiply(
          acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, 0); },
          [&](int i) TW_ALWAYS { return low_nibbles(weights(c, g->w_stride, i)); }, add_pairs);
      pin(acc);
      forget(c);
      multiply(
          acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, 4); },
          [&](int i) TW_ALWAYS { return high_nibbles(weights(c, g->w_stride, i)); }, add_pairs);
      pin(acc);
      advance(c, 8);
    }
  }

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines / 4; n > 0; --n) {
      __m256i pairs[R][N];
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < N; ++i) pairs[r][i] = _mm256_setzero_si256();
      }
      sum_pairs(pairs, c, g);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < N; ++i) acc[r][i] = _mm256_add_epi32(acc[r][i], widened(pairs[r][i]));
      }
    }
  }
};

}  // namespace

extern "C" void tw_quantized_matmul_i8_avx2(const tw_quantized_matmul_args* a) {
  a->group == 0 ? matmul<Kernels<Bytes, true>>(a) : matmul<Kernels<Bytes>>(a);
}

extern "C" void tw_quantized_matmul_i4_avx2(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Nibbles>>(a);
}
