// Attention on AVX-512, shared by x86_avx512.cc and x86_avx512bf16.cc, which differ in how scores are
// computed.
//
// Up to 8 (query, head) rows go through a split together, so that each K and V vector is loaded once for all
// of them:
//   1. scores of every tile that a row sees,  2. online softmax row by row,  3. weights times V, sums in
//   registers.
// Every output lane sees the operations of scalar.cc in the same order; the grouping of rows changes no bit.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_

#include "plugins/common/bf16.h"
#include "plugins/common/x86_avx512.h"
#include "plugins/paged_attention/visible.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kMaxRows = 8;

struct RowBlock {
  int tile_begin, tile_end;                    // tiles that some row sees
  uint16_t visible[kMaxRows][TW_SPLIT_TILES];  // bit j: the row sees position j of the tile
  uint8_t whole[TW_SPLIT_TILES];               // every row sees all of the tile
  uint8_t rescaled[TW_SPLIT_TILES];            // some row's maximum grew in the tile
  float rescale[kMaxRows][TW_SPLIT_TILES];     // what the sums of earlier tiles are multiplied with
  alignas(64) float weight[kMaxRows][TW_ATTENTION_SPLIT];  // dot products, then exp(score - max)
};

struct TilePointers {
  const char *k[TW_SPLIT_TILES], *v[TW_SPLIT_TILES];
};

// tw_exp for x <= 0 or NaN: the power of two goes straight into the exponent, which cannot overflow there.
inline __m512 exp_nonpositive(__m512 x) {
  const __m512 round = _mm512_set1_ps(TW_EXP_ROUND), one = _mm512_set1_ps(1.0f);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(TW_EXP_LOG2E), round), round);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(TW_EXP_LN2_HIGH), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(TW_EXP_LN2_LOW), r);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(TW_EXP_C6), r, _mm512_set1_ps(TW_EXP_C5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C2));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), one);
  const __m512i power = _mm512_slli_epi32(_mm512_cvttps_epi32(n), 23);
  const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(TW_EXP_LOW), _CMP_NLT_UQ);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(kept, _mm512_castps_si512(p), power));
}

inline __m512 tanh_lanes(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(TW_TANH_C11), z, _mm512_set1_ps(TW_TANH_C9));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C7));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C5));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C3));
  const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
  const __m512 denominator = _mm512_add_ps(tw_exp_avx512(_mm512_add_ps(x, x)), one);
  const __m512 far = _mm512_sub_ps(one, _mm512_div_ps(two, denominator));
  const __mmask16 is_near = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(TW_TANH_NEAR), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(far, is_near, near);
}

inline float tree_sum(__m512 lanes) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

// Step 2 for one row. Tiles in which it sees nothing are left out.
inline void soften_row(const tw_attention_args* a, RowBlock& block, int row, float* max_out, float* sum_out) {
  const __m512 scale = _mm512_set1_ps(a->scale), softcap = _mm512_set1_ps(a->softcap);
  const bool capped = a->softcap != 0;
  __m512 sum = _mm512_setzero_ps();
  float max = -INFINITY;
  for (int tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const __mmask16 visible = block.visible[row][tile];
    float* weight = block.weight[row] + tile * TW_LANES;
    block.rescale[row][tile] = 1.0f;
    if (!visible) continue;
    __m512 score = _mm512_mul_ps(_mm512_load_ps(weight), scale);
    if (capped) score = _mm512_mul_ps(softcap, tanh_lanes(_mm512_div_ps(score, softcap)));
    score = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), visible, score);
    const float tile_max = _mm512_reduce_max_ps(score), higher = max > tile_max ? max : tile_max;
    if (!(higher == max)) {
      const __m512 rescale = exp_nonpositive(_mm512_set1_ps(max - higher));
      sum = _mm512_mul_ps(sum, rescale);
      block.rescale[row][tile] = _mm512_cvtss_f32(rescale);
      block.rescaled[tile] = 1;
      max = higher;
    }
    const __m512 p = exp_nonpositive(_mm512_sub_ps(score, _mm512_set1_ps(max)));
    sum = _mm512_mask_add_ps(sum, visible, sum, p);
    _mm512_store_ps(weight, p);
  }
  *max_out = max + 0.0f;  // as in scalar.cc
  *sum_out = tree_sum(sum);
}

template <int kDtype>
inline __m512 load_value(const char* v, __mmask16 lanes) {
  if (kDtype == TW_BF16) return tw_bf16_to_f32_avx512(_mm256_maskz_loadu_epi16(lanes, v));
  return _mm512_maskz_loadu_ps(lanes, v);
}

// A tile that some row sees only in part: V of a position that nobody sees is not read into any sum.
template <int kDtype, int R, int W>
inline void add_partial_tile(const RowBlock& block, int tile, const char* v, int64_t row_bytes,
                             __mmask16 lanes, __m512 (&acc)[R][W]) {
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes) {
    for (int w = 0; w < W; ++w) {
      const __m512 value = load_value<kDtype>(v + w * TW_LANES * (kDtype == TW_BF16 ? 2 : 4), lanes);
      for (int r = 0; r < R; ++r) {
        const __mmask16 seen = (__mmask16) - (block.visible[r][tile] >> j & 1);
        const __m512 p = _mm512_set1_ps(block.weight[r][tile * TW_LANES + j]);
        acc[r][w] = _mm512_mask3_fmadd_ps(p, value, acc[r][w], seen);
      }
    }
  }
}

// Step 3 for R rows and W vectors of head_dim from `column` on; `lanes` masks them if W is 1.
template <int kDtype, int R, int W>
inline void weigh_values(const RowBlock& block, const TilePointers& tiles, int head_dim, int column,
                         __mmask16 lanes, float* out) {
  constexpr int kBytes = kDtype == TW_BF16 ? 2 : 4;
  const int64_t row_bytes = (int64_t)head_dim * kBytes;
  __m512 acc[R][W];
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
  }
  for (int tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const char* v = tiles.v[tile] + (int64_t)column * kBytes;
    if (block.rescaled[tile]) {
      for (int r = 0; r < R; ++r) {
        const __m512 rescale = _mm512_set1_ps(block.rescale[r][tile]);
        for (int w = 0; w < W; ++w) acc[r][w] = _mm512_mul_ps(acc[r][w], rescale);
      }
    }
    if (!block.whole[tile]) {
      add_partial_tile<kDtype, R, W>(block, tile, v, row_bytes, lanes, acc);
      continue;
    }
    const float* weight = block.weight[0] + tile * TW_LANES;
    for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ++weight) {
      __m512 value[W];
      for (int w = 0; w < W; ++w)
        value[w] = load_value<kDtype>(v + w * TW_LANES * kBytes, W == 1 ? lanes : 0xffff);
      for (int r = 0; r < R; ++r) {
        const __m512 p = _mm512_set1_ps(weight[r * TW_ATTENTION_SPLIT]);
        for (int w = 0; w < W; ++w) acc[r][w] = _mm512_fmadd_ps(p, value[w], acc[r][w]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int w = 0; w < W; ++w) {
      _mm512_mask_storeu_ps(out + (int64_t)r * head_dim + column + w * TW_LANES, W == 1 ? lanes : 0xffff,
                            acc[r][w]);
    }
  }
}

// Step 1: dot products of R rows with every tile, several tiles at a time to hide latency and reuse q.
template <typename Scores, int R>
inline void score_tiles(RowBlock& block, const TilePointers& tiles, const typename Scores::Q* q,
                        int head_dim) {
  constexpr int kTiles = R <= 4 ? 4 : 2;
  int tile = block.tile_begin;
  for (; tile + kTiles <= block.tile_end; tile += kTiles) {
    Scores::template tiles<R, kTiles>(tiles.k + tile, q, head_dim, block.weight[0] + tile * TW_LANES);
  }
  for (; tile < block.tile_end; ++tile) {
    Scores::template tiles<R, 1>(tiles.k + tile, q, head_dim, block.weight[0] + tile * TW_LANES);
  }
}

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  score_tiles<Scores, R>(block, tiles, q, a->head_dim);
  for (int r = 0; r < R; ++r) soften_row(a, block, r, a->max + row + r, a->sum + row + r);
  constexpr int kVectors = R <= 5 ? 4 : 2;
  float* out = a->acc + row * a->head_dim;
  int column = 0;
  for (; column + kVectors * TW_LANES <= a->head_dim; column += kVectors * TW_LANES) {
    weigh_values<Scores::kDtype, R, kVectors>(block, tiles, a->head_dim, column, 0xffff, out);
  }
  for (; column < a->head_dim; column += TW_LANES) {
    const __mmask16 lanes = tw_lanes_avx512(a->head_dim - column);
    weigh_values<Scores::kDtype, R, 1>(block, tiles, a->head_dim, column, lanes, out);
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
    block.rescaled[tile] = 0;
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

// Where the tiles lie that some query sees.
inline void find_tiles(const tw_attention_args* a, int dtype, TilePointers& tiles) {
  const int64_t start = (int64_t)a->split * TW_ATTENTION_SPLIT;
  const int64_t begin = a->window > 0 ? (int64_t)a->first_position - a->window + 1 - start : 0;
  const int64_t end = (int64_t)a->first_position + a->queries - start;
  const size_t k_bytes = tw_kv_k_bytes(dtype, a->head_dim, a->block_size);
  const size_t panel_bytes = tw_panel_bytes(dtype, a->head_dim),
               row_bytes = a->head_dim * tw_dtype_bytes(dtype);
  for (int tile = begin > 0 ? (int)(begin / TW_LANES) : 0; tile < TW_SPLIT_TILES && tile * TW_LANES < end;
       ++tile) {
    int32_t position;
    const char* page = tw_split_block(a, tile, &position);
    tiles.k[tile] = page + position / TW_LANES * panel_bytes;
    tiles.v[tile] = page + k_bytes + position * row_bytes;
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
    } else {
      write_nothing(a, row, count);
    }
    row += count;
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
