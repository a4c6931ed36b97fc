// Computes a quantized matmul of weights with steps in registers of AVX-512 with VNNI.
//
// A code becomes offset + step * code, a weight plus 128, which vpdpbusd takes as an unsigned byte. Steps are
// at most 16 and codes at most 15, so a product of words multiplies the two codes in a word at once.
//
//   few rows:   a tile over the whole of K (x86_avx512_tile.h), which decodes in registers: a step and an
//               offset for each panel, and 7 instructions for 128 weights
//   many rows:  for each unit of 4 panels, for each block of K: decode to bytes in the L2 cache, then
//               for P panels, for R rows: a tile of exact sums, which begin where the last block ended
//
// What decodes in registers shares ports with the dot products, for every tile again; what decodes to the
// cache waits for its stores, once. 16 rows are the most that one tile takes.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_STEPS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_STEPS_H_

#include "plugins/quantized_matmul/kernel.h"
#include "plugins/quantized_matmul/x86_avx512_tile.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kBlockColumns = 2560;  // of K: a decoded unit and the rows of a chunk fit the L2 cache
constexpr int64_t kRowsOfBlocks = 192;   // whose sums wait in the L2 cache between blocks
constexpr int64_t kDecodedPanel = (1 + kBlockColumns / 4) * 64;  // bytes: the scales of rows, then weights

// The steps and offsets of the 16 rows of a group, in the 4 bytes that each row has in a line.
struct Steps {
  __m512i step;    // in words
  __m512i offset;  // in bytes
};

TW_INLINE Steps steps_of(const char* steps, const char* offsets) {
  const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i words = _mm512_or_si512(_mm512_mullo_epi32(row, _mm512_set1_epi32(0x00010001)),
                                        _mm512_set1_epi32((int)0x80008000u));
  const __m512i bytes = _mm512_mullo_epi32(row, _mm512_set1_epi32(0x01010101));
  const __m128i most = _mm_set1_epi8(TW_MOST_STEP);
  const __m512i step = _mm512_broadcast_i32x4(_mm_min_epu8(_mm_loadu_si128((const __m128i*)steps), most));
  const __m512i offset = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)offsets));
  return {_mm512_shuffle_epi8(step, words), _mm512_shuffle_epi8(offset, bytes)};
}

// Returns the weights plus 128 of the low or the high nibbles of a line.
template <bool kHigh>
TW_INLINE __m512i decoded(__m512i line, const Steps& s) {
  const __m512i codes = _mm512_and_si512(kHigh ? _mm512_srli_epi32(line, 4) : line, _mm512_set1_epi8(15));
  return _mm512_add_epi8(_mm512_mullo_epi16(codes, s.step), s.offset);
}

// A `tile` of x86_avx512vnni.cc, for weights with steps.
template <int kDtype>
struct Stepped {
  static constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  static constexpr int kRows = 16;
  static constexpr int kTile = 16;  // a panel has a step and an offset besides

  template <bool kHigh, int R, int P>
  static TW_INLINE void add(__m512i (&acc)[R][P], const Cursors<R, P>& at, const Tile& t,
                            const Steps (&steps)[P]) {
    __m512i w[P];
    TW_UNROLL
    for (int p = 0; p < P; ++p)
      w[p] = decoded<kHigh>(_mm512_loadu_si512(at.w[p / 3] + p % 3 * t.w_stride), steps[p]);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t bits;
      memcpy(&bits, at.x[r / 3] + r % 3 * t.x_stride + (kHigh ? 4 : 0), sizeof bits);
      const __m512i x = _mm512_set1_epi32(bits);
      TW_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], x);
    }
  }

  // Adds the exact sums of one group, and moves the cursors behind it.
  template <int R, int P>
  static TW_INLINE void add_group(__m512i (&acc)[R][P], Cursors<R, P>& at, const Tile& t,
                                  const Steps (&steps)[P]) {
    int64_t line = t.lines;
    do {
      const char *ahead = at.w[0] + t.ahead, *near = at.w[0] + kNearBytes;
      TW_UNROLL
      for (int p = 0; p < P; ++p) {
        _mm_prefetch(ahead + p * t.w_stride, _MM_HINT_T1);
        _mm_prefetch(near + p * t.w_stride, _MM_HINT_T0);
      }
      add<false>(acc, at, t, steps);
      at.forget();
      add<true>(acc, at, t, steps);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
      }
      at.advance(8, 64);
    } while (--line > 0);
  }

  template <int R, int P>
  static void run(const Tile* tile) {
    const Tile t = *tile;
    Cursors<R, P> at = start<R, P>(t);
    at.advance(0, tw_quantized_front(kDtype));
    __m512i acc[R][P];
    start_sums(acc, t.x_sum);
    for (int64_t i = 0; i < t.groups; ++i) {
      const int64_t place = i % kCodec.period;
      if (place == 0) at.advance(0, kCodec.header);
      const int64_t to_steps = kCodec.header + place * (t.lines * 64 - kLanes);  // bytes back
      Steps steps[P];
      TW_UNROLL
      for (int p = 0; p < P; ++p) {
        const char* group = at.w[p / 3] + p % 3 * t.w_stride - to_steps;
        steps[p] = steps_of(group, group + kCodec.zeros);
      }
      add_group(acc, at, t, steps);
    }
    scale_sums(acc, t);
  }
};

// Decodes groups [begin, end) of a panel to the layout of whole rows, with bytes plus 128.
template <int kDtype>
void decode_panel(const tw_quantized_matmul_args* a, const char* panel, int64_t begin, int64_t end,
                  char* to) {
  constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  _mm512_store_si512(to, _mm512_loadu_si512(panel));
  to += 64;
  for (int64_t i = begin; i < end; ++i) {
    const char* steps = panel + tw_quantized_scale_offset(kDtype, a->matmul.k, a->group, i);
    const Steps s = steps_of(steps, steps + kCodec.zeros);
    const char* line = panel + tw_quantized_group_offset(kDtype, a->matmul.k, a->group, i);
    for (int64_t n = a->group / 8; n > 0; --n, line += 64, to += 128) {
      _mm_prefetch(line + kNearBytes, _MM_HINT_T0);
      const __m512i codes = _mm512_loadu_si512(line);
      _mm512_store_si512(to, decoded<false>(codes, s));
      _mm512_store_si512(to + 64, decoded<true>(codes, s));
    }
  }
}

// Adds the products of R rows and P decoded panels, over a block of K.
template <int R, int P>
TW_INLINE void add_lines(__m512i (&acc)[R][P], const Tile& t) {
  Cursors<R, P> at = start<R, P>(t);
  at.advance(0, 64);
  int64_t line = t.lines;
  do {
    __m512i w[P];
    TW_UNROLL
    for (int p = 0; p < P; ++p) w[p] = _mm512_load_si512(at.w[p / 3] + p % 3 * t.w_stride);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t bits;
      memcpy(&bits, at.x[r / 3] + r % 3 * t.x_stride, sizeof bits);
      const __m512i x = _mm512_set1_epi32(bits);
      TW_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], x);
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
    }
    at.advance(4, 64);
  } while (--line > 0);
}

// For blocks of K of decoded panels.
struct Blocks {
  static constexpr int kRows = 12;
  static constexpr int kTile = 24;

  template <int R, int P>
  static void run(const Tile* tile) {
    const Tile t = *tile;
    __m512i acc[R][P];
    if (t.first) {
      start_sums(acc, t.x_sum);
    } else {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int p = 0; p < P; ++p) acc[r][p] = _mm512_load_si512(t.sum + (r * kUnit + p) * kLanes);
      }
    }
    add_lines(acc, t);
    if (t.last) {
      scale_sums(acc, t);
    } else {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int p = 0; p < P; ++p) _mm512_store_si512(t.sum + (r * kUnit + p) * kLanes, acc[r][p]);
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_STEPS_H_
