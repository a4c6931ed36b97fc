// quantized_matmul for AVX-512 with VNNI. Same bits as scalar.cc.
//
// vpdpbusd multiplies unsigned by signed. Nibbles are unsigned as stored (w + 8); bytes become so by flipping
// their sign bit (w + 128). What this adds to a sum is known beforehand, 8 or 128 times the sum of x, and
// taken off the start.
#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/quantized_matmul/x86.h"

namespace {

// What 64 bytes of a panel hold: for nibbles, the low or the high half of each byte.
template <int kBits, bool kHigh>
inline __attribute__((always_inline)) __m512i unsigned_weights(const char* w) {
  const __m512i bytes = _mm512_loadu_si512(w);
  if (kBits == 8) return _mm512_xor_si512(bytes, _mm512_set1_epi8((char)0x80));
  return _mm512_and_si512(kHigh ? _mm512_srli_epi32(bytes, 4) : bytes, _mm512_set1_epi8(15));
}

template <int kBits, bool kHigh, int R, int P>
inline __attribute__((always_inline)) void step(__m512i (&acc)[R][P], const Cursor& c, int64_t x_stride,
                                                int64_t w_stride) {
  __m512i w[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) w[p] = unsigned_weights<kBits, kHigh>(c.w[p / 3] + p % 3 * w_stride);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    int32_t bits;
    memcpy(&bits, c.x[r / 3] + r % 3 * x_stride + (kHigh ? 4 : 0), sizeof bits);
    const __m512i x = _mm512_set1_epi32(bits);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], x);
  }
}

template <int kBits, int R, int P>
inline __attribute__((always_inline)) void dot(__m512i (&acc)[R][P], const Group* g) {
  const int64_t x_stride = g->x_stride, w_stride = g->w_stride;
  Cursor c = {{g->x, g->x + 3 * x_stride}, {g->w, g->w + 3 * w_stride}};
  for (int64_t s = g->lines; s > 0; --s) {
    // A panel may be as short as two pages, which ends before the processor's own fetching ahead is under
    // way.
    const char* ahead = c.w[0] + g->ahead;
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) _mm_prefetch(ahead + p * w_stride, _MM_HINT_T1);
    step<kBits, false>(acc, c, x_stride, w_stride);
    if (kBits == 4) {
      __asm__("" : "+r"(c.w[0]), "+r"(c.w[1]));  // load again: there are no registers to keep the bytes in
      step<kBits, true>(acc, c, x_stride, w_stride);
    }
    // Sums that are not pinned here end up in memory: the compiler sees more values alive than registers.
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
    }
    for (int i = 0; i < 2; ++i) c.x[i] += 32 / kBits, c.w[i] += 64;
    __asm__("" : "+r"(c.x[0]), "+r"(c.x[1]), "+r"(c.w[0]), "+r"(c.w[1]));
  }
}

template <int kBits, int R, int P>
inline __attribute__((always_inline)) void start(__m512i (&acc)[R][P], const Group* g) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512i excess = _mm512_set1_epi32(g->x_sum[r * g->group_stride] * (kBits == 4 ? -8 : -128));
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = excess;
  }
}

// A group with scales of its own: its sums join those of the groups before.
template <int kBitsOfWeight>
struct Grouped {
  static constexpr int kBits = kBitsOfWeight;

  template <int R, int P>
  static void run(const Group* g) {
    __m512i acc[R][P];
    start<kBits>(acc, g);
    dot<kBits>(acc, g);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const __m512 w_scale =
          tw_bf16_to_f32_avx512(_mm256_loadu_si256((const __m256i*)(g->scales + p * g->w_stride)));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* sum = g->sum + (r * kUnit + p) * kLanes;
        const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(g->x_scale[r * g->group_stride]), w_scale);
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][p]), scale, _mm512_loadu_ps(sum)));
      }
    }
  }
};

// The whole of K under one scale.
struct Whole {
  static constexpr int kBits = 8;

  template <int R, int P>
  static void run(const Group* g) {
    __m512i acc[R][P];
    start<kBits>(acc, g);
    dot<kBits>(acc, g);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const __m512 w_scale = _mm512_loadu_ps(g->scales + p * g->w_stride);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(g->x_scale[r * g->group_stride]), w_scale);
        _mm512_storeu_ps(g->sum + (r * kUnit + p) * kLanes,
                         _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][p]), scale));
      }
    }
  }
};

typedef void (*Micro)(const Group*);

template <class Of, int P>
Micro micro_of(int64_t rows) {
  static const Micro table[kRows] = {Of::template run<1, P>, Of::template run<2, P>, Of::template run<3, P>,
                                     Of::template run<4, P>, Of::template run<5, P>, Of::template run<6, P>};
  return table[rows - 1];
}

// `Kind` of x86.h. Six rows and four panels take 29 of 32 registers.
template <class Of>
struct Kernels {
  static constexpr int kBits = Of::kBits;

  static int64_t panels_at_once(int64_t) { return kUnit; }

  static Micro micro(int64_t rows, int64_t panels) {
    switch (panels) {
      case 1:
        return micro_of<Of, 1>(rows);
      case 2:
        return micro_of<Of, 2>(rows);
      case 3:
        return micro_of<Of, 3>(rows);
      default:
        return micro_of<Of, 4>(rows);
    }
  }

  static void finish(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     const float* sum) {
    finish_for(a, panels)(a, row, rows, panel, sum);
  }
};

}  // namespace

extern "C" void tw_quantized_matmul_i8_avx512vnni(const tw_quantized_matmul_args* a) {
  a->group == 0 ? matmul<Kernels<Whole>>(a) : matmul<Kernels<Grouped<8>>>(a);
}

extern "C" void tw_quantized_matmul_i4_avx512vnni(const tw_quantized_matmul_args* a) {
  matmul<Kernels<Grouped<4>>>(a);
}
