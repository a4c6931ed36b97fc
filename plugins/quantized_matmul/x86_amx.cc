// quantized_matmul for AMX-INT8, with the same bits as scalar.cc: exact sums of whole rows in tiles.
//
//   for each unit of 4 panels, for each chunk of 64 rows:
//     for 32 rows and 2 panels: 4 tiles of sums, over the whole of K in steps of 64
//     the rows after the last 16: as x86_avx512vnni.cc computes them
//   then bias, activation, residual and rounding for the chunk
//
// A step of 64 columns of a panel is a tile as it lies there: 16 lines of 16 rows with 4 columns each. A tile
// of x is 16 rows with 64 columns. 4 products use 4 tiles of operands, so that loads take half of their time.
// Weights with steps are decoded for all rows first (x86_avx512_steps.h), to unsigned bytes.
//
// Groups with scales of their own: x86_amx_groups.h. Few rows are computed without AMX.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBSSD.
#include "plugins/common/x86_amx.h"

#include "plugins/quantized_matmul/x86_amx_groups.h"
#include "plugins/quantized_matmul/x86_avx512_cut.h"

namespace {

constexpr int64_t kTileLines = 16;          // of 64 bytes: 4 columns of K of 16 rows of weights
constexpr int64_t kLeastRowsOfGroups = 32;  // with fewer, decoding takes as long as tiles save

// The last lines of panels, and the columns of x that they multiply, filled up with zeros to whole tiles.
struct Rest {
  alignas(64) int8_t x[2 * kTileRows][64];
  alignas(64) char w[2][kTileLines * 64];
};

// Adds the products of a step to tiles 0 to 3: those of A * 16 rows of x with P panels.
template <bool kUnsigned, int A, int P>
TW_INLINE void add_products(const int8_t* x, int64_t x_stride, const char* w, int64_t w_stride) {
  _tile_loadd(4, x, x_stride);
  if constexpr (A == 2) _tile_loadd(5, x + kTileRows * x_stride, x_stride);
  _tile_loadd(6, w, 64);
  if constexpr (P == 2) _tile_loadd(7, w + w_stride, 64);
  if constexpr (kUnsigned) {
    _tile_dpbsud(0, 4, 6);
    if constexpr (P == 2) _tile_dpbsud(1, 4, 7);
    if constexpr (A == 2) _tile_dpbsud(2, 5, 6);
    if constexpr (A == 2 && P == 2) _tile_dpbsud(3, 5, 7);
  } else {
    _tile_dpbssd(0, 4, 6);
    if constexpr (P == 2) _tile_dpbssd(1, 4, 7);
    if constexpr (A == 2) _tile_dpbssd(2, 5, 6);
    if constexpr (A == 2 && P == 2) _tile_dpbssd(3, 5, 7);
  }
}

// Writes the exact sums of A * 16 rows and P panels to sums [2 * A + P, 16, 16].
template <bool kUnsigned, int A, int P>
void sum_tiles(const Tile& t, int32_t (*sums)[kTileRows * kLanes]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int8_t* x = t.x;
  const char* w = t.w + 64;  // behind the scales of rows
  int64_t lines = t.lines;
  for (; lines >= kTileLines; lines -= kTileLines, x += 64, w += kTileLines * 64)
    add_products<kUnsigned, A, P>(x, t.x_stride, w, t.w_stride);
  if (lines > 0) {
    Rest rest = {};
    for (int64_t row = 0; row < A * kTileRows; ++row)
      memcpy(rest.x[row], x + row * t.x_stride, (size_t)lines * 4);
    for (int64_t p = 0; p < P; ++p) memcpy(rest.w[p], w + p * t.w_stride, (size_t)lines * 64);
    before_tile_loads();
    add_products<kUnsigned, A, P>(rest.x[0], 64, rest.w[0], kTileLines * 64);
  }
  _tile_stored(0, sums[0], 64);
  if constexpr (P == 2) _tile_stored(1, sums[1], 64);
  if constexpr (A == 2) _tile_stored(2, sums[2], 64);
  if constexpr (A == 2 && P == 2) _tile_stored(3, sums[3], 64);
}

// Scales the sums of 16 rows and a panel, or keeps them for the next block of K.
template <bool kUnsigned>
void take_sums(const Tile& t, int64_t row, int64_t panel, const int32_t* sums) {
  const __m512 w_scale = _mm512_loadu_ps(t.w + panel * t.w_stride);
  for (int64_t r = 0; r < kTileRows; ++r) {
    __m512i acc = _mm512_load_si512(sums + r * kLanes);
    float* sum = t.sum + ((row + r) * kUnit + panel) * kLanes;
    if constexpr (kUnsigned) {
      const __m512i before = t.first ? _mm512_set1_epi32(t.x_sum[row + r]) : _mm512_load_si512(sum);
      acc = _mm512_add_epi32(acc, before);
      if (!t.last) {
        _mm512_store_si512(sum, acc);
        continue;
      }
    }
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(t.x_scale[row + r]), w_scale);
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(acc), scale));
  }
}

template <bool kUnsigned, int A, int P>
void sum_rows(const Tile& first, int64_t row, int64_t panel) {
  alignas(64) int32_t sums[4][kTileRows * kLanes];
  Tile t = first;
  t.x += row * t.x_stride;
  t.w += panel * t.w_stride;
  sum_tiles<kUnsigned, A, P>(t, sums);
  for (int a = 0; a < A; ++a)
    for (int p = 0; p < P; ++p) take_sums<kUnsigned>(first, row + a * kTileRows, panel + p, sums[2 * a + p]);
}

// Sums of a chunk, as Registers<Of> computes them. kUnsigned: the weights are decoded ones, plus 128, and a
// block of K of them.
template <class Of, bool kUnsigned>
struct InTiles {
  static constexpr int64_t kChunk = 64;  // rows

  static void sum_chunk(const Tile& first, int64_t rows, int64_t panels, float* sum) {
    Tile t = first;
    t.sum = sum;
    const int64_t whole = rows / kTileRows * kTileRows;
    for (int64_t p = 0; p < panels; p += 2) {
      int64_t row = 0;
      for (; row + 2 * kTileRows <= whole; row += 2 * kTileRows)
        panels - p > 1 ? sum_rows<kUnsigned, 2, 2>(t, row, p) : sum_rows<kUnsigned, 2, 1>(t, row, p);
      if (row < whole)
        panels - p > 1 ? sum_rows<kUnsigned, 1, 2>(t, row, p) : sum_rows<kUnsigned, 1, 1>(t, row, p);
    }
    if (whole == rows) return;
    t.x += whole * t.x_stride;
    t.x_scale += whole;
    t.x_sum += whole;
    Registers<Of>::sum_chunk(t, rows - whole, panels, sum + whole * kUnit * kLanes);
  }
};

// The kernel of one dtype.
template <int kDtype>
void run_in_tiles(const tw_quantized_matmul_args* a) {
  if constexpr (tw_has_steps(kDtype)) {
    if (a->matmul.rows <= kMostRows) return run_in_registers<kDtype>(a);
    const Tiles tiles(kAllTiles);
    matmul_in_blocks<InTiles<Blocks, true>, kDtype>(a);
  } else {
    if (a->group >= kSmallestGroup && a->matmul.rows >= kLeastRowsOfGroups)
      return matmul_of_groups<kDtype>(a);
    if constexpr (tw_quantizes(kDtype, 0)) {
      if (a->group == 0 && a->matmul.rows >= kTileRows) {
        const Tiles tiles(kAllTiles);
        return matmul<InTiles<Whole, false>>(a, kDtype);
      }
    }
    run_in_registers<kDtype>(a);
  }
}

}  // namespace

#ifndef TW_AMX_KERNEL  // a test gives them other names
#define TW_AMX_KERNEL(kind) tw_quantized_matmul_##kind##_amx
#endif
#define TW_AMX(dtype, kind, name) \
  extern "C" void TW_AMX_KERNEL(kind)(const tw_quantized_matmul_args* a) { run_in_tiles<dtype>(a); }
TW_FOR_EACH_IN_TILES(TW_AMX)
#undef TW_AMX
