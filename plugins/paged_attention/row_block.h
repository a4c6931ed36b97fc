// What the attention kernels of all instruction sets share: the (query, head) rows that go through a split
// together, the places of the split's tiles, and the loop over row blocks.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ROW_BLOCK_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ROW_BLOCK_H_

#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/quantize.h"
#include "plugins/paged_attention/visible.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kChunk = 4;  // tiles that go through the steps together

// The state of a row block while it goes through a split.
template <int kMaxRows>
struct Rows {
  // Tiles that some row sees, by place. Without holes the place of a tile is its number in the split; with
  // holes the places are those of the tiles that are seen, from 0 on.
  int tile_begin, tile_end;
  uint16_t visible[kMaxRows][TW_SPLIT_TILES];  // bit j: the row sees position j of the tile
  uint8_t whole[TW_SPLIT_TILES];               // every row sees all of the tile
  int32_t number[TW_SPLIT_TILES + kChunk];     // of the tile in its split
  int64_t first_row;                           // (query, head) row 0 of the block
  float slope[kMaxRows];                       // of the row's head, if there are slopes
  int32_t start[kMaxRows];                     // position 0 of the split, counted from the row's own position
  float max[kMaxRows];                         // so far
  alignas(64) float sum[kMaxRows][TW_LANES];   // so far
  // The following members describe the current chunk.
  unsigned rescaled;                                      // bit i: the maximum of some row grew in tile i
  float rescale[kMaxRows][kChunk];                        // factors for the sums of earlier tiles
  alignas(64) float weight[kMaxRows][kChunk * TW_LANES];  // dot products, then exp(score - max)
};

// The tiles of the split, and the first tiles after it as far as there are any.
struct TilePointers {
  const char *k[TW_SPLIT_TILES + kChunk], *v[TW_SPLIT_TILES + kChunk];
  const void*
      v_scale[TW_SPLIT_TILES + kChunk];  // only for a cache of integers: floats, or an int4 page's words
};

// Finds the tiles that rows see among tiles with holes. Returns false if they see nothing.
template <int kMaxRows>
inline bool look_past_holes(const tw_attention_args* a, const tw_visible* range, int rows,
                            Rows<kMaxRows>& block) {
  int place = 0;
  for (int tile = 0; tile < TW_SPLIT_TILES; ++tile) {
    unsigned some = 0, all = 0xffff;
    if (!tw_tile_exists(a, tile)) continue;
    for (int r = 0; r < rows; ++r) {
      const unsigned seen = tw_visible_in_tile(range[r], tile);
      block.visible[r][place] = (uint16_t)seen;
      some |= seen;
      all &= seen;
    }
    if (!some) continue;
    block.whole[place] = all == 0xffff;
    block.number[place++] = tile;
  }
  block.tile_begin = 0;
  block.tile_end = place;
  return place > 0;
}

// Finds the tiles that rows [row, row + rows) see, where row = query * group + head. Returns false if they
// see nothing.
template <int kMaxRows>
inline bool look(const tw_attention_args* a, int64_t row, int rows, Rows<kMaxRows>& block) {
  tw_visible range[kMaxRows];
  int begin = TW_ATTENTION_SPLIT, end = 0;          // what some row sees
  int all_begin = 0, all_end = TW_ATTENTION_SPLIT;  // what every row sees
  block.first_row = row;
  for (int r = 0; r < rows; ++r) {
    range[r] = tw_visible_positions(a, (int32_t)((row + r) / a->group));
    block.start[r] = a->split * TW_ATTENTION_SPLIT - (a->first_position + (int32_t)((row + r) / a->group));
    block.slope[r] = a->slopes ? a->slopes[(row + r) % a->group] : 0.0f;
    block.max[r] = -INFINITY;
    memset(block.sum[r], 0, sizeof block.sum[r]);
    all_begin = range[r].begin > all_begin ? range[r].begin : all_begin;
    all_end = range[r].end < all_end ? range[r].end : all_end;
    if (range[r].end <= range[r].begin) continue;
    begin = range[r].begin < begin ? range[r].begin : begin;
    end = range[r].end > end ? range[r].end : end;
  }
  if (tw_has_holes(a)) return look_past_holes(a, range, rows, block);
  block.tile_begin = begin / TW_LANES;
  block.tile_end = (end + TW_LANES - 1) / TW_LANES;
  for (int tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const bool whole = tile * TW_LANES >= all_begin && (tile + 1) * TW_LANES <= all_end;
    block.whole[tile] = whole;
    block.number[tile] = tile;
    for (int r = 0; r < rows; ++r)
      block.visible[r][tile] = whole ? 0xffff : tw_visible_in_tile(range[r], tile);
  }
  return begin < end;
}

// Returns where the maximum and the sum of a row's tile are noted.
template <int kMaxRows>
inline int64_t noted_at(const tw_attention_args* a, const Rows<kMaxRows>& block, int row, int tile) {
  return (int64_t)block.number[tile] * a->queries * a->group + block.first_row + row;
}

// Finds where the tiles lie that some query sees. The pointers of tiles that do not exist are those of the
// last tile before them, which is fetched ahead in their place.
inline void find_tiles(const tw_attention_args* a, int dtype, TilePointers& tiles) {
  const size_t tile_bytes = tw_kv_tile_bytes(dtype, a->head_dim);
  const bool quantized = tw_kv_is_quantized(dtype);
  const char *k = NULL, *v = NULL, *v_scale = NULL;
  for (int tile = 0; tile < TW_SPLIT_TILES + kChunk; ++tile) {
    if (tile < TW_SPLIT_TILES && tw_tile_exists(a, tile)) {
      int32_t position;
      const char* page = tw_split_block(a, tile, &position);
      k = page + position / TW_LANES * tile_bytes;
      v = tw_value_row(a, dtype, page, position, tile * TW_LANES);
      if (quantized) v_scale = page + tw_kv_v_scale_offset(dtype, a->head_dim, a->block_size, position, 0);
    }
    tiles.k[tile] = k;
    tiles.v[tile] = v;
    tiles.v_scale[tile] = v_scale;
  }
}

// Puts the pointers of a row block's tiles at their places.
template <int kMaxRows>
inline void place_tiles(const Rows<kMaxRows>& block, const TilePointers& tiles, TilePointers& placed) {
  for (int place = 0; place < block.tile_end + kChunk; ++place) {
    const int tile = block.number[place < block.tile_end ? place : block.tile_end - 1];
    placed.k[place] = tiles.k[tile];
    placed.v[place] = tiles.v[tile];
    placed.v_scale[place] = tiles.v_scale[tile];
  }
}

// q of a row block is packed as float32 [head_dim][rows], so that one base register reaches every broadcast.
// head_dim is padded with zeros, as in K.
template <int kDtype>
inline size_t widened_q_bytes(int head_dim, int rows) {
  return tw_k_padded(kDtype, (size_t)head_dim) * rows * sizeof(float);
}

template <int kDtype>
inline void pack_widened(const tw_attention_args* a, int64_t row, int rows, float* to) {
  memset(to + (int64_t)a->head_dim * rows, 0,
         widened_q_bytes<kDtype>(a->head_dim, rows) - (size_t)a->head_dim * rows * sizeof *to);
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (row + r) / a->group * a->q_stride + (row + r) % a->group * a->head_dim;
    for (int d = 0; d < a->head_dim; ++d) {
      const uint16_t* h = (const uint16_t*)a->q + at + d;
      to[d * rows + r] = kDtype == TW_BF16 ? tw_bf16_to_f32(*h) : ((const float*)a->q)[at + d];
    }
  }
}

// With an int8 cache, q of a row block is packed as the scales [rows], then for every four dimensions [rows]
// pairs of 16-bit integers (0, 2) and [rows] pairs (1, 3).
inline size_t quantized_q_words(int head_dim, int rows) {
  return (size_t)(1 + (head_dim + 3) / 4 * 2) * rows;
}

// Widens a row of q, float32 or bfloat16, to x [head_dim].
inline void load_row_of_q(const tw_attention_args* a, int64_t row, float* x) {
  const int64_t at = row / a->group * a->q_stride + row % a->group * a->head_dim;
  if (a->q_dtype == TW_BF16) {
    for (int d = 0; d < a->head_dim; ++d) x[d] = tw_bf16_to_f32(((const uint16_t*)a->q)[at + d]);
  } else {
    memcpy(x, (const float*)a->q + at, (size_t)a->head_dim * sizeof *x);
  }
}

inline void pack_quantized(const tw_attention_args* a, int64_t row, int rows, int32_t* to) {
  float x[TW_MAX_INT_HEAD_DIM];
  int16_t q[TW_MAX_INT_HEAD_DIM];
  for (int r = 0; r < rows; ++r) {
    load_row_of_q(a, row + r, x);
    const float scale = quantize_head(x, a->head_dim, kQueryLevels, q);
    memcpy(to + r, &scale, sizeof scale);
    for (int d = 0; d < a->head_dim; d += 4) {
      int32_t* pairs = to + (1 + d / 2) * rows + r;
      pairs[0] = (int32_t)((uint16_t)q[d] | (uint32_t)(uint16_t)q[d + 2] << 16);
      pairs[rows] = (int32_t)((uint16_t)q[d + 1] | (uint32_t)(uint16_t)q[d + 3] << 16);
    }
  }
}

// With an int4 cache, q of a row block is packed as the scales [rows]; then for every group [rows] the sum of
// its integers times the scale, which the group's offset is multiplied with; then for every eight dimensions
// [rows] four bytes of the upper parts of the first four, [rows] of their lower parts, and the same of the
// last four. An integer is 16 times its upper part plus its lower part. Dimensions are padded with zeros.
inline size_t narrow_q_words(int head_dim, int rows) {
  return (size_t)(1 + tw_kv_scales(TW_I4, head_dim) + (head_dim + 7) / 8 * 4) * rows;
}

// Splits four integers of q into two words of bytes.
inline void split_four(const int16_t* q, uint32_t* upper, uint32_t* lower) {
  *upper = *lower = 0;
  for (int i = 0; i < 4; ++i) {
    const int high = (q[i] + 8) >> 4;
    *upper |= (uint32_t)(uint8_t)high << 8 * i;
    *lower |= (uint32_t)(uint8_t)(q[i] - 16 * high) << 8 * i;
  }
}

inline void pack_narrow(const tw_attention_args* a, int64_t row, int rows, int32_t* to) {
  float x[TW_MAX_INT_HEAD_DIM];
  int16_t q[TW_MAX_INT_HEAD_DIM + 8];
  const int groups = tw_kv_scales(TW_I4, a->head_dim);
  for (int r = 0; r < rows; ++r) {
    load_row_of_q(a, row + r, x);
    const float scale = quantize_head(x, a->head_dim, kNarrowQueryLevels, q);
    memset(q + a->head_dim, 0, 8 * sizeof *q);
    memcpy(to + r, &scale, sizeof scale);
    for (int group = 0; group < groups; ++group) {
      const float sum = (float)sum_of_group(q, a->head_dim, group) * scale;
      memcpy(to + (1 + group) * rows + r, &sum, sizeof sum);
    }
    uint32_t* word = (uint32_t*)to + (1 + groups) * rows + r;
    for (int d = 0; d < a->head_dim; d += 4 * 2, word += 4 * rows) {
      split_four(q + d, word, word + rows);
      split_four(q + d + 4, word + 2 * rows, word + 3 * rows);
    }
  }
}

// Kernel must have kDtype, kMaxRows, Q (a packed element of q), packed_bytes, pack, rows(count) (returns the
// function that takes `count` rows through a split), and tree_sum. The plan reader admits head_dim up to
// tw_max_head_dim(), so q takes 128 KiB of the stack at most.
template <typename Kernel>
inline void attend(const tw_attention_args* a) {
  const int64_t rows = (int64_t)a->queries * a->group;
  const int64_t blocks = (rows + Kernel::kMaxRows - 1) / Kernel::kMaxRows;
  auto* q = (typename Kernel::Q*)__builtin_alloca(Kernel::packed_bytes(a->head_dim));
  Rows<Kernel::kMaxRows> block;
  memset(block.number, 0, sizeof block.number);
  TilePointers tiles, placed;
  find_tiles(a, Kernel::kDtype, tiles);
  for (int64_t i = 0, row = 0; i < blocks; ++i) {
    const int count = (int)(rows * (i + 1) / blocks - row);  // blocks of nearly equal size
    const bool sees = look(a, row, count, block);
    if (sees) Kernel::pack(a, row, count, q);
    if (sees) {
      const bool holes = tw_has_holes(a);
      if (holes) place_tiles(block, tiles, placed);
      Kernel::rows(count)(a, block, holes ? placed : tiles, q, row);
    } else {
      memset(a->acc + row * a->v_dim, 0, (size_t)count * a->v_dim * sizeof(float));
    }
    for (int r = 0; r < count; ++r) {
      a->max[row + r] = block.max[r] + 0.0f;  // as in scalar.cc
      a->sum[row + r] = Kernel::tree_sum(block.sum[r]);
    }
    row += count;
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ROW_BLOCK_H_
