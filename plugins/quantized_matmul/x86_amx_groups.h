// Weights in groups with scales of their own, in tiles of AMX-INT8: the same bits as scalar.cc.
//
//   for each unit of 4 panels, for each chunk of 192 rows, for each block of K:
//     decode the block's groups: unsigned bytes, float scales, zero points
//     for each panel, for each 16 rows: for each group, one tile of exact sums, then
//       sum += float(exact sum + what cancels that weights are unsigned) * (scale of x * scale of w)
//   then bias, activation, residual and rounding
//
// The float sums of 16 rows and a panel stay in registers over a block, and the exact sums of 4 groups are
// written before those of the 4 groups before are read, so that tiles and registers work at the same time.
// A group has 64 or 128 columns: one of 32 would fill half of a tile, and was no faster than registers. The
// last tile of rows ends with the last row, and may begin among the rows of the tile before.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AMX_GROUPS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AMX_GROUPS_H_

#include "plugins/common/x86_amx.h"
#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/quantized_matmul/kernel.h"
#include "plugins/quantized_matmul/x86_avx512_tile.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kGroupColumns = 2048;  // of K in a block: the decoded unit fits the L2 cache
constexpr int64_t kGroupRows = 192;      // of a chunk
constexpr int64_t kAtOnce = 4;           // groups, in a tile of sums each
constexpr int64_t kFront = 128;          // bytes before a decoded group: its scales and its zero points
constexpr int64_t kSmallestGroup = 64;   // of those in tiles
constexpr int64_t kDecodedGroups =
    kGroupColumns / kSmallestGroup * kFront + kGroupColumns * kLanes;  // bytes of a panel

template <int kDtype, int kStep>
TW_INLINE void decode_steps(const char* w, char* to) {
  _mm512_store_si512(to + kStep * 64, unsigned_weights<kDtype, kStep>(w));
  if constexpr (kStep + 1 < tw_block_steps(kDtype)) decode_steps<kDtype, kStep + 1>(w, to);
}

// Decodes groups [begin, end) of a panel.
template <int kDtype>
void decode_groups(const char* panel, int64_t k, int64_t group, int64_t begin, int64_t end, char* to) {
  const int64_t blocks = group / 4 / tw_block_steps(kDtype);
  for (int64_t i = begin; i < end; ++i) {
    _mm512_store_ps(to, group_scales<kDtype>(panel + tw_quantized_scale_offset(kDtype, k, group, i)));
    if constexpr (tw_codec(kDtype).zeros != 0) {
      const char* zeros = panel + tw_quantized_zero_offset(kDtype, k, group, i);
      __m512i zero = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)zeros));
      if (tw_codec(kDtype).bits == 8) zero = _mm512_add_epi32(zero, _mm512_set1_epi32(128));
      _mm512_store_si512(to + 64, zero);
    }
    to += kFront;
    const char* w = panel + tw_quantized_group_offset(kDtype, k, group, i);
    for (int64_t block = 0; block < blocks; ++block) {
      decode_steps<kDtype, 0>(w, to);
      w += tw_block_lines(kDtype) * 64;
      to += tw_block_steps(kDtype) * 64;
    }
  }
}

// A block of K of 16 rows and a panel.
struct GroupTile {
  const int8_t* x;  // first row, at the block's first K
  int64_t x_stride;
  const float* x_scale;  // of the first row, at the block's first group
  const int32_t* x_sum;
  int64_t group_stride;
  const char* w;  // the decoded panel
  int64_t groups, group;
  float* sum;  // [16, kUnit, 16]
  bool first;  // of the blocks of K
};

// Writes the sums of products of a group, at `x` and `w`, by tile kTile. Neighbours have operands of their
// own.
template <int kTile>
TW_INLINE void sum_group(const GroupTile& t, const int8_t* x, const char* w, int32_t* sums) {
#define TW_SUM_GROUP(c, a, b)                                  \
  _tile_zero(c);                                               \
  for (int64_t done = 0; done < t.group; done += kTileBytes) { \
    _tile_loadd(a, x + done, t.x_stride);                      \
    _tile_loadd(b, w + kFront + done * kLanes, 64);            \
    _tile_dpbsud(c, a, b);                                     \
  }                                                            \
  _tile_stored(c, sums, 64)
  if constexpr (kTile == 0) {
    TW_SUM_GROUP(0, 4, 6);
  } else if constexpr (kTile == 1) {
    TW_SUM_GROUP(1, 5, 7);
  } else if constexpr (kTile == 2) {
    TW_SUM_GROUP(2, 4, 6);
  } else {
    TW_SUM_GROUP(3, 5, 7);
  }
#undef TW_SUM_GROUP
}

// Writes the sums of up to 4 groups from group `i` on.
TW_INLINE void sum_some(const GroupTile& t, int64_t i, int32_t (*sums)[kTileRows * kLanes]) {
  const int64_t bytes = kFront + t.group * kLanes;
  const int8_t* x = t.x + i * t.group;
  const char* w = t.w + i * bytes;
  if (i < t.groups) sum_group<0>(t, x, w, sums[0]);
  if (i + 1 < t.groups) sum_group<1>(t, x + t.group, w + bytes, sums[1]);
  if (i + 2 < t.groups) sum_group<2>(t, x + 2 * t.group, w + 2 * bytes, sums[2]);
  if (i + 3 < t.groups) sum_group<3>(t, x + 3 * t.group, w + 3 * bytes, sums[3]);
}

// Adds a group to the float sums of 16 rows.
template <bool kZeros>
TW_INLINE void add_group(__m512 (&sum)[kTileRows], const int32_t* sums, const char* w, const float* x_scale,
                         const int32_t* x_sum) {
  const __m512 w_scale = _mm512_load_ps(w);
  const __m512i zero = _mm512_load_si512(w + 64);
  TW_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    __m512i start = _mm512_set1_epi32(x_sum[r]);
    if constexpr (kZeros) start = _mm512_mullo_epi32(zero, start);
    const __m512i exact = _mm512_add_epi32(_mm512_load_si512(sums + r * kLanes), start);
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x_scale[r]), w_scale);
    sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, sum[r]);
  }
}

template <bool kZeros>
void sum_groups(const GroupTile& t) {
  alignas(64) int32_t sums[2][kAtOnce][kTileRows * kLanes];
  __m512 sum[kTileRows];
  TW_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    sum[r] = t.first ? _mm512_setzero_ps() : _mm512_load_ps(t.sum + r * kUnit * kLanes);
  sum_some(t, 0, sums[0]);
  for (int64_t some = 0; some < t.groups; some += kAtOnce) {
    sum_some(t, some + kAtOnce, sums[some / kAtOnce % 2 ^ 1]);
    for (int64_t i = some; i < at_most(some + kAtOnce, t.groups); ++i)
      add_group<kZeros>(sum, sums[some / kAtOnce % 2][i - some], t.w + i * (kFront + t.group * kLanes),
                        t.x_scale + i * t.group_stride, t.x_sum + i * t.group_stride);
  }
  TW_UNROLL
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(t.sum + r * kUnit * kLanes, sum[r]);
}

// Adds groups [begin, end) to the sums of a chunk of rows and a unit of panels. Each tile of rows has 16 rows
// of sums.
template <int kDtype>
void sum_block_of_groups(const tw_quantized_matmul_args* args, int64_t row, int64_t rows, int64_t panel,
                         int64_t panels, int64_t begin, int64_t end, float* sum) {
  const tw_matmul_args* a = &args->matmul;
  const int64_t panel_bytes = tw_quantized_panel_bytes(kDtype, a->k, args->group);
  alignas(64) char decoded[kDecodedGroups];
  for (int64_t p = 0; p < panels; ++p) {
    decode_groups<kDtype>((const char*)a->w + (panel + p) * panel_bytes, a->k, args->group, begin, end,
                          decoded);
    before_tile_loads();
    for (int64_t tile = 0; tile * kTileRows < rows; ++tile) {
      const int64_t at = row + at_most(tile * kTileRows, rows - kTileRows);
      sum_groups<tw_codec(kDtype).zeros != 0>({(const int8_t*)a->x + at * a->x_stride + begin * args->group,
                                               a->x_stride, args->x_scale + begin * args->group_stride + at,
                                               args->x_sum + begin * args->group_stride + at,
                                               args->group_stride, decoded, end - begin, args->group,
                                               sum + (tile * kTileRows * kUnit + p) * kLanes, begin == 0});
    }
  }
}

// Computes 16 rows or more, of groups of 64 or 128 columns.
template <int kDtype>
void matmul_of_groups(const tw_quantized_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const Tiles tiles(kAllTiles);
  const int64_t groups = tw_quantized_groups(a->k, args->group), at_once = kGroupColumns / args->group;
  alignas(64) float sum[kGroupRows * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows;) {
      const int64_t rows = next_rows(a->rows - row, kGroupRows), whole = rows / kTileRows * kTileRows;
      for (int64_t begin = 0; begin < groups; begin += at_once)
        sum_block_of_groups<kDtype>(args, row, rows, panel, panels, begin, at_most(begin + at_once, groups),
                                    sum);
      finish_for(a, panels)(a, row, whole, panel, sum);
      // The last tile began with a row that has been finished already.
      const float* last = sum + (whole + kTileRows - (rows - whole)) * kUnit * kLanes;
      if (whole < rows) finish_for(a, panels)(a, row + whole, rows - whole, panel, last);
      row += rows;
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AMX_GROUPS_H_
