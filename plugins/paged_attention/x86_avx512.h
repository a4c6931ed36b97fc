// Attention on AVX-512, shared by x86_avx512.cc, x86_avx512bf16.cc and x86_avx512vnni.cc, which differ in how
// scores are computed.
//
// Up to 8 (query, head) rows go through a split together, so that each K and V vector is loaded once for all
// of them. For each chunk of tiles:
//   1. scores of the chunk's tiles, 2. online softmax row by row, 3. sums of V by weight, in registers.
// Steps 1 and 3 fetch ahead the V of this chunk and the K of the next, so that memory and arithmetic overlap.
// Every output lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_

#include "plugins/paged_attention/x86_avx512_softmax.h"

namespace {

template <int kDtype>
constexpr int kBytes = kDtype == TW_I8     ? 1
                       : kDtype == TW_BF16 ? 2
                                           : 4;

template <int kDtype>
inline __m512 load_value(const char* v, __mmask16 lanes) {
  if (kDtype == TW_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, v)));
  if (kDtype == TW_BF16) return tw_bf16_to_f32_avx512(_mm256_maskz_loadu_epi16(lanes, v));
  return _mm512_maskz_loadu_ps(lanes, v);
}

// Adds a tile that some row sees only in part. Positions that a row does not see are not added to the row's
// sums, not even times 0.
template <int kDtype, int R, int W>
TW_INLINE void add_partial_tile(const RowBlock& block, int tile, int in_chunk, const char* v,
                                int64_t row_bytes, __mmask16 lanes, __m512 (&acc)[R][W]) {
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const __m512 value = load_value<kDtype>(v + w * TW_LANES * kBytes<kDtype>, lanes);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __mmask16 seen = (__mmask16) - (block.visible[r][tile] >> j & 1);
        const __m512 p = _mm512_set1_ps(block.weight[r][in_chunk * TW_LANES + j]);
        acc[r][w] = _mm512_mask3_fmadd_ps(p, value, acc[r][w], seen);
      }
    }
  }
}

// Adds a tile that every row sees. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, int R, int W>
TW_INLINE void add_whole_tile(const float* weight, const char* v, const char* ahead, int64_t row_bytes,
                              __mmask16 lanes, __m512 (&acc)[R][W]) {
  constexpr int kVector = TW_LANES * kBytes<kDtype>;
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

// Does step 3 for R rows and W vectors of V from `column` on; `lanes` masks them if W is 1.
template <int kDtype, int R, int W>
inline void weigh_values(const RowBlock& block, const TilePointers& tiles, int begin, int end, int v_dim,
                         int column, __mmask16 lanes, float* out) {
  const int64_t bytes = kBytes<kDtype>, row_bytes = v_dim * bytes;
  __m512 acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * v_dim + column + w * TW_LANES;
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
      _mm512_mask_storeu_ps(out + (int64_t)r * v_dim + column + w * TW_LANES, lanes, acc[r][w]);
    }
  }
}

// Does step 1: dot products of R rows with a chunk of tiles, several tiles at a time to hide latency and
// reuse q.
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

// Multiplies the weights with the scales of V, for an int8 cache. Also fetches the next chunk's scales, which
// lie behind K panels and V rows.
template <int R>
inline void scale_weights(RowBlock& block, const TilePointers& tiles, int begin, int end, int head_dim) {
  const size_t panel_bytes = tw_panel_bytes(TW_I8, (size_t)head_dim);
  for (int tile = begin; tile < end; ++tile) {
    const __m512 scale = _mm512_loadu_ps(tiles.v_scale[tile]);
    _mm_prefetch((const char*)tiles.v_scale[tile + kChunk], _MM_HINT_T0);
    _mm_prefetch(tiles.k[tile + kChunk] + panel_bytes, _MM_HINT_T0);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      float* weight = block.weight[r] + (tile - begin) * TW_LANES;
      _mm512_store_ps(weight, _mm512_mul_ps(_mm512_load_ps(weight), scale));
    }
  }
}

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  constexpr int kVectors = R <= 5 ? 4 : 2;
  float* out = a->acc + row * a->v_dim;
  for (int begin = block.tile_begin; begin < block.tile_end; begin += kChunk) {
    const int end = begin + kChunk < block.tile_end ? begin + kChunk : block.tile_end;
    score_tiles<Scores, R>(block, tiles, begin, end, q, a->head_dim);
    soften(a, block, R, begin, end);
    if (Scores::kDtype == TW_I8) scale_weights<R>(block, tiles, begin, end, a->head_dim);
    int column = 0;
    for (; column + kVectors * TW_LANES <= a->v_dim; column += kVectors * TW_LANES) {
      weigh_values<Scores::kDtype, R, kVectors>(block, tiles, begin, end, a->v_dim, column, 0xffff, out);
    }
    for (; column < a->v_dim; column += TW_LANES) {
      const __mmask16 lanes = tw_lanes_avx512(a->v_dim - column);
      weigh_values<Scores::kDtype, R, 1>(block, tiles, begin, end, a->v_dim, column, lanes, out);
    }
  }
}

// The Kernel of attend() in row_block.h, for one way to compute scores.
template <typename Scores>
struct Attention : Scores {
  static constexpr int kMaxRows = ::kMaxRows;
  typedef void (*Attend)(const tw_attention_args*, RowBlock&, const TilePointers&, const typename Scores::Q*,
                         int64_t);
  static Attend rows(int count) {
    static constexpr Attend kAttend[kMaxRows] = {
        attend_rows<Scores, 1>, attend_rows<Scores, 2>, attend_rows<Scores, 3>, attend_rows<Scores, 4>,
        attend_rows<Scores, 5>, attend_rows<Scores, 6>, attend_rows<Scores, 7>, attend_rows<Scores, 8>};
    return kAttend[count - 1];
  }
  static float tree_sum(const float* lanes) { return tw_tree_sum_avx512(_mm512_load_ps(lanes)); }
};

template <int R, int N>
TW_INLINE void clear(__m512 (&acc)[R][N]) {
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_ps();
  }
}

template <int R, int N>
TW_INLINE void store(const __m512 (&acc)[R][N], float* to) {
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int n = 0; n < N; ++n) _mm512_store_ps(to + r * kChunk * TW_LANES + n * TW_LANES, acc[r][n]);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_H_
