// Attention on AVX-512, shared by x86_avx512.cc and x86_avx512bf16.cc, which differ in how scores are
// computed.
//
// Up to 8 (query, head) rows go through a split together, so that each K and V vector is loaded once for all
// of them. For each chunk of tiles:
//   1. scores of its tiles,  2. online softmax row by row,  3. sums of V by weight, in registers.
// Steps 1 and 3 fetch ahead the V of this chunk and the K of the next, so that memory and arithmetic overlap.
// Every output lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/x86_avx512_softmax.h"

namespace {

// Tiles of the split, and the first ones after it as far as there are any.
struct TilePointers {
  const char *k[TW_SPLIT_TILES + kChunk], *v[TW_SPLIT_TILES + kChunk];
};

template <int kDtype>
inline __m512 load_value(const char* v, __mmask16 lanes) {
  if (kDtype == TW_BF16) return tw_bf16_to_f32_avx512(_mm256_maskz_loadu_epi16(lanes, v));
  return _mm512_maskz_loadu_ps(lanes, v);
}

// A tile that some row sees only in part: what a row does not see is added to none of its sums, not even
// times 0.
template <int kDtype, int R, int W>
TW_INLINE void add_partial_tile(const RowBlock& block, int tile, int in_chunk, const char* v,
                                int64_t row_bytes, __mmask16 lanes, __m512 (&acc)[R][W]) {
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const __m512 value = load_value<kDtype>(v + w * TW_LANES * (kDtype == TW_BF16 ? 2 : 4), lanes);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __mmask16 seen = (__mmask16) - (block.visible[r][tile] >> j & 1);
        const __m512 p = _mm512_set1_ps(block.weight[r][in_chunk * TW_LANES + j]);
        acc[r][w] = _mm512_mask3_fmadd_ps(p, value, acc[r][w], seen);
      }
    }
  }
}

// A tile that every row sees. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, int R, int W>
TW_INLINE void add_whole_tile(const float* weight, const char* v, const char* ahead, int64_t row_bytes,
                              __mmask16 lanes, __m512 (&acc)[R][W]) {
  constexpr int kVector = TW_LANES * (kDtype == TW_BF16 ? 2 : 4);
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    __m512 value[W];
    TW_UNROLL
    for (int w = 0; w < W; ++w) value[w] = load_value<kDtype>(v + w * kVector, W == 1 ? lanes : 0xffff);
    TW_UNROLL
    for (int at = 0; at < W * kVector; at += 64) _mm_prefetch(ahead + at, _MM_HINT_T1);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 p = _mm512_set1_ps(weight[r * kChunk * TW_LANES]);
      TW_UNROLL
      for (int w = 0; w < W; ++w) acc[r][w] = _mm512_fmadd_ps(p, value[w], acc[r][w]);
    }
  }
}

// Step 3 for R rows and W vectors of head_dim from `column` on; `lanes` masks them if W is 1.
template <int kDtype, int R, int W>
inline void weigh_values(const RowBlock& block, const TilePointers& tiles, int begin, int end, int head_dim,
                         int column, __mmask16 lanes, float* out) {
  const int64_t bytes = kDtype == TW_BF16 ? 2 : 4, row_bytes = head_dim * bytes;
  __m512 acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * head_dim + column + w * TW_LANES;
      acc[r][w] = begin == block.tile_begin ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, from);
    }
  }
  for (int tile = begin; tile < end; ++tile) {
    const char *v = tiles.v[tile] + column * bytes, *ahead = tiles.k[tile + kChunk] + column * bytes;
    if (block.rescaled >> (tile - begin) & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 rescale = _mm512_set1_ps(block.rescale[r][tile - begin]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = _mm512_mul_ps(acc[r][w], rescale);
      }
    }
    if (block.whole[tile]) {
      const float* weight = block.weight[0] + (tile - begin) * TW_LANES;
      add_whole_tile<kDtype, R, W>(weight, v, ahead, row_bytes, lanes, acc);
    } else {
      add_partial_tile<kDtype, R, W>(block, tile, tile - begin, v, row_bytes, lanes, acc);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      _mm512_mask_storeu_ps(out + (int64_t)r * head_dim + column + w * TW_LANES, lanes, acc[r][w]);
    }
  }
}

// Step 1: dot products of R rows with a chunk of tiles, several tiles at a time to hide latency and reuse q.
template <typename Scores, int R>
inline void score_tiles(RowBlock& block, const TilePointers& tiles, int begin, int end,
                        const typename Scores::Q* q, int head_dim) {
  constexpr int kTiles = R <= 4 ? 4 : 2;
  int tile = begin;
  for (; tile + kTiles <= end; tile += kTiles) {
    float* out = block.weight[0] + (tile - begin) * TW_LANES;
    Scores::template tiles<R, kTiles>(tiles.k + tile, tiles.v + tile, q, head_dim, out);
  }
  for (; tile < end; ++tile) {
    float* out = block.weight[0] + (tile - begin) * TW_LANES;
    Scores::template tiles<R, 1>(tiles.k + tile, tiles.v + tile, q, head_dim, out);
  }
}

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  constexpr int kVectors = R <= 5 ? 4 : 2;
  float* out = a->acc + row * a->head_dim;
  for (int begin = block.tile_begin; begin < block.tile_end; begin += kChunk) {
    const int end = begin + kChunk < block.tile_end ? begin + kChunk : block.tile_end;
    score_tiles<Scores, R>(block, tiles, begin, end, q, a->head_dim);
    a->softcap != 0 ? soften<true>(a, block, R, begin, end) : soften<false>(a, block, R, begin, end);
    int column = 0;
    for (; column + kVectors * TW_LANES <= a->head_dim; column += kVectors * TW_LANES) {
      weigh_values<Scores::kDtype, R, kVectors>(block, tiles, begin, end, a->head_dim, column, 0xffff, out);
    }
    for (; column < a->head_dim; column += TW_LANES) {
      const __mmask16 lanes = tw_lanes_avx512(a->head_dim - column);
      weigh_values<Scores::kDtype, R, 1>(block, tiles, begin, end, a->head_dim, column, lanes, out);
    }
  }
}

// What rows [row, row + rows) see, row = query * group + head. False if that is nothing.
inline bool look(const tw_attention_args* a, int64_t row, int rows, RowBlock& block) {
  tw_visible range[kMaxRows];
  int begin = TW_ATTENTION_SPLIT, end = 0;
  for (int r = 0; r < rows; ++r) {
    range[r] = tw_visible_positions(a, (int32_t)((row + r) / a->group));
    if (range[r].end <= range[r].begin) continue;
    begin = range[r].begin < begin ? range[r].begin : begin;
    end = range[r].end > end ? range[r].end : end;
  }
  block.tile_begin = begin / TW_LANES;
  block.tile_end = (end + TW_LANES - 1) / TW_LANES;
  for (int tile = block.tile_begin; tile < block.tile_end; ++tile) {
    uint16_t all = 0xffff;
    for (int r = 0; r < rows; ++r) all &= block.visible[r][tile] = tw_visible_in_tile(range[r], tile);
    block.whole[tile] = all == 0xffff;
  }
  for (int r = 0; r < rows; ++r) {
    block.max[r] = -INFINITY;
    _mm512_store_ps(block.sum[r], _mm512_setzero_ps());
  }
  return begin < end;
}

inline void write_nothing(const tw_attention_args* a, int64_t row, int rows) {
  memset(a->acc + row * a->head_dim, 0, (size_t)rows * a->head_dim * sizeof(float));
  for (int64_t r = row; r < row + rows; ++r) {
    a->max[r] = -INFINITY;
    a->sum[r] = 0;
  }
}

// Where the tiles lie that some query sees. Those that do not exist stand for the last one, which is fetched
// ahead in their place.
inline void find_tiles(const tw_attention_args* a, int dtype, TilePointers& tiles) {
  const int64_t start = (int64_t)a->split * TW_ATTENTION_SPLIT;
  const int64_t begin = a->window > 0 ? (int64_t)a->first_position - a->window + 1 - start : 0;
  const int64_t end = (int64_t)a->first_position + a->queries - start;
  const size_t k_bytes = tw_kv_k_bytes(dtype, a->head_dim, a->block_size);
  const size_t panel_bytes = tw_panel_bytes(dtype, a->head_dim),
               row_bytes = a->head_dim * tw_dtype_bytes(dtype);
  const char *k = NULL, *v = NULL;
  for (int tile = begin > 0 ? (int)(begin / TW_LANES) : 0; tile < TW_SPLIT_TILES + kChunk; ++tile) {
    if (tile * TW_LANES < end) {
      int32_t position;
      const char* page = tw_split_block(a, tile, &position);
      k = page + position / TW_LANES * panel_bytes;
      v = page + k_bytes + position * row_bytes;
    }
    tiles.k[tile] = k;
    tiles.v[tile] = v;
  }
}

template <typename Scores>
inline void attend(const tw_attention_args* a) {
  using Attend =
      void (*)(const tw_attention_args*, RowBlock&, const TilePointers&, const typename Scores::Q*, int64_t);
  static const Attend kAttend[kMaxRows] = {
      attend_rows<Scores, 1>, attend_rows<Scores, 2>, attend_rows<Scores, 3>, attend_rows<Scores, 4>,
      attend_rows<Scores, 5>, attend_rows<Scores, 6>, attend_rows<Scores, 7>, attend_rows<Scores, 8>};
  const int64_t rows = (int64_t)a->queries * a->group, blocks = (rows + kMaxRows - 1) / kMaxRows;
  auto* q = (typename Scores::Q*)__builtin_alloca(Scores::packed_bytes(a->head_dim));
  RowBlock block;
  TilePointers tiles;
  find_tiles(a, Scores::kDtype, tiles);
  for (int64_t i = 0, row = 0; i < blocks; ++i) {
    const int count = (int)(rows * (i + 1) / blocks - row);  // blocks of nearly equal size
    if (look(a, row, count, block)) {
      Scores::pack(a, row, count, q);
      kAttend[count - 1](a, block, tiles, q, row);
      for (int r = 0; r < count; ++r) {
        a->max[row + r] = block.max[r] + 0.0f;  // as in scalar.cc
        a->sum[row + r] = tw_tree_sum_avx512(_mm512_load_ps(block.sum[r]));
      }
    } else {
      write_nothing(a, row, count);
    }
    row += count;
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
