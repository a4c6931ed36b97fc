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

// The bytes of `columns` columns of V, a multiple of 32 for int4.
template <int kDtype>
constexpr int bytes_of(int columns) {
  return kDtype == TW_I4     ? columns / 2
         : kDtype == TW_I8   ? columns
         : kDtype == TW_BF16 ? 2 * columns
                             : 4 * columns;
}

// Returns where column `column` of a row of V begins. In an int4 page the columns 16 to 31 of 32 lie where
// the first 16 do.
template <int kDtype>
inline int64_t column_bytes(int column) {
  return kDtype == TW_I4 ? column / 32 * 16 : (int64_t)bytes_of<kDtype>(column);
}

// Returns the low halves of 16 integers as float.
inline __m512 nibbles_to_f32(__m512i x) {
  return _mm512_permutexvar_ps(
      x, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));  // reads 4 bits of each
}

template <int kDtype>
inline __m512 load_value(const char* v, __mmask16 lanes) {
  if (kDtype == TW_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, v)));
  if (kDtype == TW_BF16) return tw_bf16_to_f32_avx512(_mm256_maskz_loadu_epi16(lanes, v));
  return _mm512_maskz_loadu_ps(lanes, v);
}

// The columns of V that are summed together: W vectors, or a masked one.
struct Columns {
  int begin;
  __mmask16 lanes;
};

// Loads the columns of one row of V. `v` points at the first of them.
template <int kDtype, int W>
TW_INLINE void load_values(const char* v, Columns columns, __m512 (&value)[W]) {
  if (kDtype != TW_I4) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      value[w] = load_value<kDtype>(v + bytes_of<kDtype>(w * TW_LANES), W == 1 ? columns.lanes : 0xffff);
    }
    return;
  }
  const auto load = [&](int pair)
                        TW_ALWAYS { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)v + pair)); };
  if (W == 1) {  // rows of V are padded to whole runs of 32 columns
    value[0] = nibbles_to_f32(_mm512_srl_epi32(load(0), _mm_cvtsi32_si128(columns.begin / 16 % 2 * 4)));
    return;
  }
  TW_UNROLL
  for (int w = 0; w < W; w += 2) {
    const __m512i x = load(w / 2);
    value[w] = nibbles_to_f32(x);
    value[w + (W > 1)] = nibbles_to_f32(_mm512_srli_epi32(x, 4));
  }
}

// The weights of a chunk's positions for each row.
using Weights = float[kMaxRows][kChunk * TW_LANES];

// Adds a tile that some row sees only in part. Positions that a row does not see are not added to the row's
// sums, not even times 0.
template <int kDtype, int R, int W>
TW_INLINE void add_partial_tile(const RowBlock& block, const Weights& weight, int tile, int in_chunk,
                                const char* v, int64_t row_bytes, Columns columns, __m512 (&acc)[R][W]) {
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes) {
    __m512 value[W];
    load_values<kDtype, W>(v, columns, value);
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __mmask16 seen = (__mmask16) - (block.visible[r][tile] >> j & 1);
        const __m512 p = _mm512_set1_ps(weight[r][in_chunk * TW_LANES + j]);
        acc[r][w] = _mm512_mask3_fmadd_ps(p, value[w], acc[r][w], seen);
      }
    }
  }
}

// Adds a tile that every row sees. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, int R, int W>
TW_INLINE void add_whole_tile(const float* weight, const char* v, const char* ahead, int64_t row_bytes,
                              Columns columns, __m512 (&acc)[R][W]) {
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    __m512 value[W];
    load_values<kDtype, W>(v, columns, value);
    TW_UNROLL
    for (int at = 0; at < bytes_of<kDtype>(W * TW_LANES); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T1);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 p = _mm512_set1_ps(weight[r * kChunk * TW_LANES]);
      TW_UNROLL
      for (int w = 0; w < W; ++w) acc[r][w] = _mm512_fmadd_ps(p, value[w], acc[r][w]);
    }
  }
}

// Does step 3 for R rows and W vectors of V.
template <int kDtype, int R, int W>
inline void weigh_values(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                         int end, int v_dim, Columns columns, float* out) {
  const int column = columns.begin;
  const __mmask16 lanes = columns.lanes;
  const auto row_bytes = (int64_t)tw_kv_row_bytes(kDtype, v_dim);
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
    const int64_t at = column_bytes<kDtype>(column);
    const char *v = tiles.v[tile] + at, *ahead = tiles.k[tile + kChunk] + at;
    if (block.rescaled >> (tile - begin) & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 rescale = _mm512_set1_ps(block.rescale[r][tile - begin]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = _mm512_mul_ps(acc[r][w], rescale);
      }
    }
    if (block.whole[tile]) {
      const float* first = weight[0] + (tile - begin) * TW_LANES;
      add_whole_tile<kDtype, R, W>(first, v, ahead, row_bytes, columns, acc);
    } else {
      add_partial_tile<kDtype, R, W>(block, weight, tile, tile - begin, v, row_bytes, columns, acc);
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
    const __m512 scale = _mm512_loadu_ps((const float*)tiles.v_scale[tile]);
    _mm_prefetch((const char*)tiles.v_scale[tile + kChunk], _MM_HINT_T0);
    _mm_prefetch(tiles.k[tile + kChunk] + panel_bytes, _MM_HINT_T0);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      float* weight = block.weight[r] + (tile - begin) * TW_LANES;
      _mm512_store_ps(weight, _mm512_mul_ps(_mm512_load_ps(weight), scale));
    }
  }
}

// Does step 3 for columns [column, end_column), which begin at a multiple of 32.
template <int kDtype, int R>
inline void weigh_columns(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                          int end, int v_dim, int column, int end_column, float* out) {
  constexpr int kVectors = R <= 5 ? 4 : 2;
  for (; column + kVectors * TW_LANES <= end_column; column += kVectors * TW_LANES) {
    weigh_values<kDtype, R, kVectors>(block, weight, tiles, begin, end, v_dim, {column, 0xffff}, out);
  }
  for (; column < end_column; column += TW_LANES) {
    const __mmask16 lanes = tw_lanes_avx512(end_column - column);
    weigh_values<kDtype, R, 1>(block, weight, tiles, begin, end, v_dim, {column, lanes}, out);
  }
}

// Does step 3 for a chunk. The int4 cache has a specialization.
template <int kDtype>
struct Values {
  explicit Values(const tw_attention_args*) {}

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    if (kDtype == TW_I8) scale_weights<R>(block, tiles, begin, end, a->head_dim);
    weigh_columns<kDtype, R>(block, block.weight, tiles, begin, end, a->v_dim, 0, a->v_dim, out);
  }
  template <int R>
  void finish(const tw_attention_args*, float*) {}
};

// What follows the scores, unless a kernel has its own.
template <int kDtype>
struct PlainSteps {
  using Weight = ExactWeight;
  using Sums = Values<kDtype>;
};

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  float* out = a->acc + row * a->v_dim;
  typename Scores::Sums values(a);
  for (int begin = block.tile_begin; begin < block.tile_end; begin += kChunk) {
    const int end = begin + kChunk < block.tile_end ? begin + kChunk : block.tile_end;
    score_tiles<Scores, R>(block, tiles, begin, end, q, a->head_dim);
    soften<typename Scores::Weight>(a, block, R, begin, end);
    values.template add<R>(a, block, tiles, begin, end, out);
  }
  values.template finish<R>(a, out);
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
