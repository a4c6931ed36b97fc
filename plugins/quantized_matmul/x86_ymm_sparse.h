// The dot product of 2:4 sparse weights in registers of 256 bits, shared by AVX2 and AVX-VNNI.
//
// The places of the kept elements of 8 columns become the control bytes of vpshufb, which takes from 8
// elements of x the four that a row multiplies. So a row's products are as many as it has weights.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_SPARSE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_SPARSE_H_

#include "plugins/quantized_matmul/x86_ymm.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns the control bytes of columns 8 * kEighth to 8 * kEighth + 7 of a block, whose places are given.
template <int kEighth>
TW_INLINE __m256i controls(__m256i places) {
  const __m256i all = _mm256_srli_epi32(places, 2 * kEighth);
  return _mm256_or_si256(_mm256_and_si256(all, _mm256_set1_epi8(3)), _mm256_set1_epi32(0x04040000));
}

// `Add` adds the products of unsigned by signed bytes to a sum: Add::add(sum, unsigned, signed).
template <int kOf, class Add>
struct SparseDot {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = false;

  // Returns half a line of a block; line 0 holds the places.
  static TW_INLINE __m256i half_line(const Cursor& c, int64_t w_stride, int i, int line) {
    return _mm256_loadu_si256((const __m256i*)(c.w[i / 6] + i / 2 % 3 * w_stride + line * 64 + i % 2 * 32));
  }

  // Returns the kept elements of 8 columns, signed.
  template <int kEighth>
  static TW_INLINE __m256i kept(const Cursor& c, int64_t w_stride, int i) {
    if constexpr (tw_codec(kOf).bits == 8) {
      return half_line(c, w_stride, i, 1 + kEighth);
    } else {
      const __m256i bytes = half_line(c, w_stride, i, 1 + kEighth / 2);
      const __m256i nibbles =
          _mm256_and_si256(_mm256_srli_epi32(bytes, kEighth % 2 * 4), _mm256_set1_epi8(15));
      return _mm256_sub_epi8(nibbles, _mm256_set1_epi8(8));
    }
  }

  template <int kEighth, int R, int N>
  static TW_INLINE void add_eighth(__m256i (&acc)[R][N], const Cursor& c, const Group* g) {
    TW_UNROLL
    for (int i = 0; i < N; ++i) {
      const __m256i control = controls<kEighth>(half_line(c, g->w_stride, i, 0));
      const __m256i w = kept<kEighth>(c, g->w_stride, i), size = _mm256_abs_epi8(w);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        int64_t bits;
        memcpy(&bits, c.x[r / 3] + r % 3 * g->x_stride + 8 * kEighth, sizeof bits);
        const __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi64x(bits), control);
        acc[r][i] = Add::add(acc[r][i], size, _mm256_sign_epi8(x, w));
      }
    }
    pin(acc);
  }

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines; n > 0; --n) {
      add_eighth<0>(acc, c, g);
      add_eighth<1>(acc, c, g);
      add_eighth<2>(acc, c, g);
      add_eighth<3>(acc, c, g);
      for (int i = 0; i < 2; ++i) c.x[i] += TW_SPARSE_BLOCK, c.w[i] += tw_sparse_block_bytes(kOf);
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_SPARSE_H_
