// How the AVX-512 kernels multiply a 4-byte group of K of some rows into 16 lanes of some panels. `Dot` says
// what the 4 bytes are. Everything is in an unnamed namespace: this header is compiled under instruction-set
// flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_DOT_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_DOT_H_

#include <string.h>

#include "plugins/common/x86_avx512.h"

namespace {

struct F32 {
  static constexpr int64_t kRowsAtOnce = 6;
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), acc);
  }
};

// bfloat16 by exact widening. A group holds k in its low half and k + 1 in its high half.
struct WidenedBf16 {
  static constexpr int64_t kRowsAtOnce = 5;  // widened weights take twice the registers
  static inline __m512 low(__m512i pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
  static inline __m512 high(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
  }
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    acc = _mm512_fmadd_ps(low(x), low(w), acc);
    return _mm512_fmadd_ps(high(x), high(w), acc);
  }
};

#ifdef __AVX512BF16__
// Pairs (k, k + 1), K ascending.
struct DotBf16 {
  static constexpr int64_t kRowsAtOnce = 6;
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
  }
};
#endif

// Row r is at x[r / 3] + r % 3 * stride, and panel p at w[p / 3] + p % 3 * stride, because x86 addresses
// these forms directly.
struct Cursor {
  const char *x[2], *w[2];
};

template <class Dot, int R, int P>
inline __attribute__((always_inline)) void step(__m512 (&acc)[R][P], const Cursor& c, int64_t x_stride,
                                                int64_t w_stride, size_t bytes) {
  __m512i w[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) w[p] = _mm512_loadu_si512(c.w[p / 3] + p % 3 * w_stride);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    int32_t bits = 0;
    memcpy(&bits, c.x[r / 3] + r % 3 * x_stride, bytes);
    const __m512i x = _mm512_set1_epi32(bits);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = Dot::step(acc[r][p], x, w[p]);
  }
}

inline void advance(Cursor* c) {
  for (int i = 0; i < 2; ++i) c->x[i] += 4, c->w[i] += 64;
  // Keeps the compiler from turning every row into a pointer of its own; there are not enough registers.
  __asm__("" : "+r"(c->x[0]), "+r"(c->x[1]), "+r"(c->w[0]), "+r"(c->w[1]));
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_DOT_H_
