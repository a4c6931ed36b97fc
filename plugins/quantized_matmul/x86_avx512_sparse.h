// Computes R rows times P panels of 2:4 sparse weights in registers of AVX-512 with VNNI, over the whole of
// K.
//
// The places of the kept elements of 8 columns become the control bytes of vpshufb, which takes from 8
// elements of x the four that a row multiplies. So there are half as many products as with dense weights, and
// no dense weights are made. vpdpbusd multiplies unsigned by signed bytes, and here x is the unsigned one:
// x + 128. This adds 128 times the sum of a row's weights, which is computed once for all rows of x and taken
// away at the end of a group.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_SPARSE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_SPARSE_H_

#include "plugins/quantized_matmul/x86_avx512_tile.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns the control bytes of columns 8 * kEighth to 8 * kEighth + 7 of a block, whose places are given.
template <int kEighth>
TW_INLINE __m512i sparse_controls(__m512i places) {
  const __m512i all = kEighth == 0 ? places : _mm512_srli_epi32(places, 2 * kEighth);
  // (all & 3) | the first of the four columns
  return _mm512_ternarylogic_epi32(all, _mm512_set1_epi8(3), _mm512_set1_epi32(0x04040000), 0xea);
}

// For groups with scales of their own, as Grouped of x86_avx512_tile.h.
template <int kDtype>
struct SparseGrouped {
  static constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  static constexpr int64_t kBlockBytes = tw_sparse_block_bytes(kDtype);
  static constexpr int kRows = 12;
  static constexpr int kTile = 12;

  // Returns the kept elements of 8 columns of a block, signed.
  template <int kEighth>
  static TW_INLINE __m512i kept(const char* block) {
    if constexpr (kCodec.bits == 8) {
      return _mm512_loadu_si512(block + TW_SPARSE_PLACES + kEighth * 64);
    } else {
      const __m512i bytes = _mm512_loadu_si512(block + TW_SPARSE_PLACES + kEighth / 2 * 64);
      const __m512i nibbles = kEighth % 2 ? _mm512_srli_epi32(bytes, 4) : bytes;
      return _mm512_sub_epi8(_mm512_and_si512(nibbles, _mm512_set1_epi8(15)), _mm512_set1_epi8(8));
    }
  }

  // x: 32 columns of each row, plus 128.
  template <int kEighth, int R, int P>
  static TW_INLINE void add_eighth(__m512i (&acc)[R][P], __m512i (&excess)[P], Cursors<R, P>& at,
                                   const __m256i (&x)[R], const Tile& t) {
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    TW_UNROLL
    for (int p = 0; p < P; ++p) {
      const char* block = at.w[p / 3] + p % 3 * t.w_stride;
      const __m512i w = kept<kEighth>(block);
      const __m512i control = sparse_controls<kEighth>(_mm512_loadu_si512(block));
      excess[p] = _mm512_dpbusd_epi32(excess[p], flip, w);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        int64_t bits;
        memcpy(&bits, (const char*)(x + r) + 8 * kEighth, sizeof bits);
        const __m512i picked = _mm512_shuffle_epi8(_mm512_set1_epi64(bits), control);
        acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], picked, w);
      }
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
    }
    at.forget();
  }

  // Adds the exact sums of one group, and moves the cursors behind the group.
  template <int R, int P>
  static TW_INLINE void dot(__m512i (&acc)[R][P], Cursors<R, P>& at, const Tile& t) {
    __m512i excess[P] = {};
    for (int64_t bytes = t.lines * 64; bytes > 0; bytes -= kBlockBytes) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) {
        const char* ahead = at.w[p / 3] + t.ahead;
        __asm__("" : "+r"(ahead));  // otherwise the addresses of all lines take registers
        TW_UNROLL
        for (int line = 0; line < kBlockBytes / 64; ++line) {
          _mm_prefetch(ahead + p % 3 * t.w_stride + line * 64, _MM_HINT_T1);
          _mm_prefetch(at.w[p / 3] + p % 3 * t.w_stride + kNearBytes + line * 64, _MM_HINT_T0);
        }
      }
      __m256i x[R];
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const char* row = (const char*)at.x[r / 3] + r % 3 * t.x_stride;
        x[r] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)row), _mm256_set1_epi8((char)0x80));
      }
      __asm__("" : "+m"(x));  // in memory, from where eight bytes are loaded into all lanes at once
      add_eighth<0>(acc, excess, at, x, t);
      add_eighth<1>(acc, excess, at, x, t);
      add_eighth<2>(acc, excess, at, x, t);
      add_eighth<3>(acc, excess, at, x, t);
      at.advance(TW_SPARSE_BLOCK, kBlockBytes);
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = _mm512_sub_epi32(acc[r][p], excess[p]);
    }
  }

  template <int R, int P>
  static void run(const Tile* tile) {
    const Tile t = *tile;
    Cursors<R, P> at = start<R, P>(t);
    const float* x_scale = t.x_scale;
    __m512 sum[R][P] = {};
    for (int64_t i = 0; i < t.groups; ++i) {
      const int64_t place = i % kCodec.period;
      if (place == 0) at.advance(0, kCodec.header);
      // Bytes back from the end of the group to its scales.
      const int64_t to_scales =
          kCodec.header + (place + 1) * t.lines * 64 - place * kLanes * kCodec.scale_bytes;
      __m512i acc[R][P] = {};
      dot(acc, at, t);
      TW_UNROLL
      for (int p = 0; p < P; ++p) {
        const __m512 w_scale = group_scales<kDtype>(at.w[p / 3] + p % 3 * t.w_stride - to_scales);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x_scale[r]), w_scale);
          sum[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][p]), scale, sum[r][p]);
          __asm__("" : "+v"(sum[r][p]));
        }
      }
      x_scale += t.group_stride;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) _mm512_storeu_ps(t.sum + (r * kUnit + p) * kLanes, sum[r][p]);
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_SPARSE_H_
