// Computes R rows times P panels of a quantized matmul in registers of AVX-512 with VNNI, over the whole of
// K.
//
// vpdpbusd multiplies unsigned by signed bytes. Weights of 4, 3 and 2 bits are stored unsigned (w + 8, 4 or
// 2); bytes become unsigned by flipping the sign bit (w + 128), codes of E2M1 by a table (2 w + 12). This
// adds so many times the sum of x to a sum, so the sum starts at minus that number. With zero points it
// starts at minus the zero point, made unsigned as the weights, times the sum of x.
//
// The exact sums of a group stay in registers and, where groups have scales of their own, so do the float
// sums of all groups before. A group then costs one multiplication and one fused multiply-add besides the dot
// products.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_TILE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_TILE_H_

#include <immintrin.h>
#include <string.h>

#include "plugins/common/vector.h"
#include "plugins/common/x86_avx512.h"
#include "plugins/matmul/vector.h"
#include "plugins/quantized_matmul/layout.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kNearBytes = 1024;

struct Tile {
  const int8_t* x;  // first row
  int64_t x_stride;
  const float* x_scale;  // [groups, R]
  const int32_t* x_sum;
  int64_t group_stride;
  const char* w;     // first panel
  int64_t w_stride;  // bytes between panels
  int64_t ahead;     // bytes to the next panels, which are fetched meanwhile; 0 if they are far
  int64_t groups;
  int64_t lines;     // lines of 64 bytes in a group of a panel
  float* sum;        // [R, kUnit, 16]
  bool first, last;  // of blocks of K: sums start here, and are scaled at the end
};

// Row r is at x[r / 3] + r % 3 * stride, and panel p at w[p / 3] + p % 3 * stride, because x86 addresses
// these forms directly.
template <int R, int P>
struct Cursors {
  const int8_t* x[(R + 2) / 3];
  const char* w[(P + 2) / 3];

  TW_INLINE void advance(int64_t elements, int64_t bytes) {
    TW_UNROLL
    for (const int8_t*& row : x) {
      row += elements;
      __asm__("" : "+r"(row));  // otherwise the compiler joins the pointers and spills the sums
    }
    TW_UNROLL
    for (const char*& panel : w) {
      panel += bytes;
      __asm__("" : "+r"(panel));
    }
  }

  // Makes the compiler load the weights again, because no registers are free to keep the bytes.
  TW_INLINE void forget() {
    TW_UNROLL
    for (const char*& panel : w) __asm__("" : "+r"(panel));
  }
};

// Returns twice the E2M1 numbers of all codes, plus 12, in each 16 bytes.
TW_INLINE __m512i raised_e2m1() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

// Returns the unsigned weights of a step of a block, whose first line is at `w`.
template <int kDtype, int kStep>
TW_INLINE __m512i unsigned_weights(const char* w) {
  constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  if constexpr (kCodec.bits == 8) {
    return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8((char)0x80));
  } else if constexpr (kCodec.bits == 3) {
    const __m512i low = _mm512_srli_epi32(_mm512_loadu_si512(w + kStep / 4 * 64), kStep % 4 * 2);
    const __m512i line = _mm512_loadu_si512(w + 128);
    const __m512i upper = kStep < 2 ? _mm512_slli_epi32(line, 2 - kStep) : _mm512_srli_epi32(line, kStep - 2);
    const __m512i bit = _mm512_and_si512(upper, _mm512_set1_epi8(4));
    return _mm512_ternarylogic_epi32(low, _mm512_set1_epi8(3), bit, 0xea);  // (low & 3) | bit
  } else {
    const __m512i bytes = _mm512_srli_epi32(_mm512_loadu_si512(w), kStep * kCodec.bits);
    const __m512i codes = _mm512_and_si512(bytes, _mm512_set1_epi8((1 << kCodec.bits) - 1));
    return kCodec.values == TW_E2M1 ? _mm512_shuffle_epi8(raised_e2m1(), codes) : codes;
  }
}

// Returns the 16 scales of a group.
template <int kDtype>
TW_INLINE __m512 group_scales(const char* scales) {
  if (tw_codec(kDtype).scales == TW_SCALES_E8M0) {
    const __m128i exponents = _mm_loadu_si128((const __m128i*)scales);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(exponents), 23));
  }
  if (tw_codec(kDtype).scales == TW_SCALES_F16)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)scales));
  return tw_bf16_to_f32_avx512(_mm256_loadu_si256((const __m256i*)scales));
}

// Adds the products of a block's steps from kStep on.
template <int kDtype, int kStep, int R, int P>
TW_INLINE void add_steps(__m512i (&acc)[R][P], Cursors<R, P>& at, const Tile& t) {
  __m512i w[P];
  TW_UNROLL
  for (int p = 0; p < P; ++p) w[p] = unsigned_weights<kDtype, kStep>(at.w[p / 3] + p % 3 * t.w_stride);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    int32_t bits;
    memcpy(&bits, at.x[r / 3] + r % 3 * t.x_stride + kStep * 4, sizeof bits);
    const __m512i x = _mm512_set1_epi32(bits);
    TW_UNROLL
    for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], x);
  }
  if constexpr (kStep + 1 < tw_block_steps(kDtype)) {
    at.forget();
    add_steps<kDtype, kStep + 1>(acc, at, t);
  }
}

// Lets the sums of a group start at what cancels that weights are made unsigned.
template <int R, int P>
TW_INLINE void start_sums(__m512i (&acc)[R][P], const int32_t* x_sum) {
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m512i excess = _mm512_set1_epi32(x_sum[r]);
    TW_UNROLL
    for (int p = 0; p < P; ++p) acc[r][p] = excess;
  }
}

// Lets them start at the zero points times minus the sum of x. zeros: those of the first panel. A sum of a
// group fits 16 bits, and the upper half of a zero point is multiplied by 0.
template <int kDtype, int R, int P>
TW_INLINE void start_sums_at_zeros(__m512i (&acc)[R][P], const int32_t* x_sum, const Cursors<R, P>& at,
                                   const Tile& t, int64_t to_zeros) {
  TW_UNROLL
  for (int p = 0; p < P; ++p) {
    const char* zeros = at.w[p / 3] + p % 3 * t.w_stride - to_zeros;
    __m512i zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)zeros));
    if (tw_codec(kDtype).bits == 8) zero = _mm512_add_epi32(zero, _mm512_set1_epi32(128));
    TW_UNROLL
    for (int r = 0; r < R; ++r) acc[r][p] = _mm512_madd_epi16(zero, _mm512_set1_epi32(x_sum[r] & 0xffff));
  }
}

// Adds the exact sums of one group, and moves the cursors behind the group.
template <int kDtype, int R, int P>
TW_INLINE void dot(__m512i (&acc)[R][P], Cursors<R, P>& at, const Tile& t) {
  constexpr int kLines = tw_block_lines(kDtype);
  int64_t lines = t.lines;
  do {
    // A panel may be as short as two pages, and end before the processor's own prefetch has started. So the
    // next panels are fetched into the L2 cache, and the next lines of these panels into the L1 cache.
    const char *ahead = at.w[0] + t.ahead, *near = at.w[0] + kNearBytes;
    TW_UNROLL
    for (int p = 0; p < P; ++p) {
      TW_UNROLL
      for (int i = 0; i < kLines; ++i) {
        _mm_prefetch(ahead + p * t.w_stride + i * 64, _MM_HINT_T1);
        _mm_prefetch(near + p * t.w_stride + i * 64, _MM_HINT_T0);
      }
    }
    add_steps<kDtype, 0>(acc, at, t);
    // Sums that are not pinned here go to memory, because the compiler sees more live values than registers.
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
    }
    at.advance(tw_block_steps(kDtype) * 4, kLines * 64);
  } while ((lines -= kLines) > 0);
}

template <int R, int P>
TW_INLINE Cursors<R, P> start(const Tile& t) {
  Cursors<R, P> at;
  TW_UNROLL
  for (int i = 0; i < (R + 2) / 3; ++i) at.x[i] = t.x + 3 * i * t.x_stride;
  TW_UNROLL
  for (int i = 0; i < (P + 2) / 3; ++i) at.w[i] = t.w + 3 * i * t.w_stride;
  return at;
}

// For groups with scales of their own, in periods that begin with a header of the scales.
template <int kDtype>
struct Grouped {
  static constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  static constexpr int kRows = 12;  // the most R
  static constexpr int kTile = 12;  // the most R * P: twice as many sums and 5 other registers

  template <int R, int P>
  static void run(const Tile* tile) {
    const Tile t = *tile;
    Cursors<R, P> at = start<R, P>(t);
    const float* x_scale = t.x_scale;
    const int32_t* x_sum = t.x_sum;
    __m512 sum[R][P] = {};
    for (int64_t i = 0; i < t.groups; ++i) {
      const int64_t place = i % kCodec.period;
      if (place == 0) at.advance(0, kCodec.header);
      const int64_t to_header = kCodec.header + place * t.lines * 64;  // bytes back from the group's begin
      const int64_t to_scales =
          to_header + t.lines * 64 - place * kLanes * kCodec.scale_bytes;  // from its end
      __m512i acc[R][P];
      if constexpr (kCodec.zeros != 0) {
        start_sums_at_zeros<kDtype>(acc, x_sum, at, t, to_header - kCodec.zeros - place * kLanes);
      } else {
        start_sums(acc, x_sum);
      }
      dot<kDtype>(acc, at, t);
      TW_UNROLL
      for (int p = 0; p < P; ++p) {
        const char* scales = at.w[p / 3] + p % 3 * t.w_stride - to_scales;
        const __m512 w_scale = group_scales<kDtype>(scales);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x_scale[r]), w_scale);
          sum[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][p]), scale, sum[r][p]);
          __asm__("" : "+v"(sum[r][p]));
        }
      }
      x_scale += t.group_stride, x_sum += t.group_stride;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(t.sum + (r * kUnit + p) * kLanes, sum[r][p]);
    }
  }
};

// Multiplies the sums over whole rows by the scales of rows, which are in front of the panels.
template <int R, int P>
TW_INLINE void scale_sums(const __m512i (&acc)[R][P], const Tile& t) {
  TW_UNROLL
  for (int p = 0; p < P; ++p) {
    const __m512 w_scale = _mm512_loadu_ps(t.w + p * t.w_stride);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(t.x_scale[r]), w_scale);
      _mm512_storeu_ps(t.sum + (r * kUnit + p) * kLanes, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][p]), scale));
    }
  }
}

// For whole rows, where all of K has one scale.
struct Whole {
  static constexpr int kRows = 12;
  static constexpr int kTile = 24;

  template <int R, int P>
  static void run(const Tile* tile) {
    const Tile t = *tile;
    Cursors<R, P> at = start<R, P>(t);
    at.advance(0, tw_codec(TW_I8).header);
    __m512i acc[R][P];
    start_sums(acc, t.x_sum);
    dot<TW_I8>(acc, at, t);
    scale_sums(acc, t);
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_TILE_H_
