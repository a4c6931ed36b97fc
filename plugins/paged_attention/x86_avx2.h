// Attention on AVX2, shared by x86_avx2.cc and x86_avxvnni.cc.
//
// Up to 6 (query, head) rows go through a split together, so that each K and V vector is loaded once for all
// of them. For each chunk of tiles: scores, online softmax, sums of V by weight in registers. Every output
// lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_

#include "plugins/paged_attention/x86_avx2_i8.h"

namespace {

// The bytes of `columns` columns of V, a multiple of 32 for int4.
template <int kDtype>
constexpr int bytes_of(int columns) {
  return kDtype == TW_I4     ? columns / 2
         : kDtype == TW_I8   ? columns
         : kDtype == TW_BF16 ? 2 * columns
                             : 4 * columns;
}

template <int kDtype>
TW_INLINE __m256 load_value(const char* v, int64_t count) {
  if (kDtype == TW_I8) return load_i8(v, count);
  return kDtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)v, count)
                           : tw_load_avx2((const float*)v, count);
}

// Points at column `column` of a row of V. In an int4 page the columns 16 to 31 of 32 lie where the first 16
// do: in the upper halves of the bytes.
template <int kDtype>
struct ColumnOffset {
  int64_t bytes;
  __m128i shift;
  explicit ColumnOffset(int column)
      : bytes(kDtype == TW_I4 ? column / 32 * 16 + column % 16 : (int64_t)bytes_of<kDtype>(column)),
        shift(_mm_cvtsi32_si128(column / 16 % 2 * 4)) {}
};

// Loads vector w of W vectors of a row of V. Rows of an int4 page are padded to runs of 32 columns.
template <int kDtype, int W>
TW_INLINE __m256 load_column(const char* v, int w, int64_t count, __m128i shift) {
  if (kDtype != TW_I4) return load_value<kDtype>(v + bytes_of<kDtype>(w * 8), W == 1 ? count : 8);
  const __m256i eight = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(v + w / 4 * 16 + w % 2 * 8)));
  const __m256i moved = W <= 2      ? _mm256_srl_epi32(eight, shift)
                        : w / 2 % 2 ? _mm256_srli_epi32(eight, 4)
                                    : eight;
  return _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15)));
}

// The weights of a chunk's positions for each row.
using Weights = float[kMaxRows][kChunk * TW_LANES];

// Computes dot products of R rows of q, packed [head_dim][R], with N tiles of K.
template <int kStored>
struct Widened {
  using Q = float;
  static constexpr int kDtype = kStored;
  static size_t packed_bytes(int head_dim) { return widened_q_bytes<kStored>(head_dim, kMaxRows); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_widened<kStored>(a, row, rows, to);
  }

  template <int R, int N>
  static void tiles(const char* const* tile, const char* const* ahead, const float* q, int head_dim,
                    float* out) {
    __m256 acc[R][2 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) acc[r][i] = _mm256_setzero_ps();
    }
    const char *k[N], *next[N];
    TW_UNROLL
    for (int n = 0; n < N; ++n) k[n] = tile[n], next[n] = ahead[n];
    const int64_t bytes = (int64_t)tw_panel_bytes(kDtype, (size_t)head_dim);
    for (int64_t at = 0; at < bytes; at += 64) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) _mm_prefetch(next[n] + at, _MM_HINT_T1);
      const auto row = [&](int r) TW_ALWAYS { return _mm256_broadcast_ss(q + r); };
      if (kDtype == TW_BF16) {
        tw_multiply_avx2(acc, row,
                         [&](int i) TW_ALWAYS { return tw_low_halves_avx2(k[i / 2] + at + i % 2 * 32); });
        q += R;
        tw_multiply_avx2(acc, row,
                         [&](int i) TW_ALWAYS { return tw_high_halves_avx2(k[i / 2] + at + i % 2 * 32); });
      } else {
        tw_multiply_avx2(acc, row, [&](int i) TW_ALWAYS {
          return _mm256_loadu_ps((const float*)(k[i / 2] + at) + i % 2 * 8);
        });
      }
      q += R;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) _mm256_store_ps(out + r * kChunk * TW_LANES + i * 8, acc[r][i]);
    }
  }
};

// Adds position after position of a tile. Positions that a row does not see are not added to the row's sums,
// not even times 0. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, bool kWhole, int R, int W>
TW_INLINE void add_tile(const RowBlock& block, const Weights& weights, int tile, int in_chunk, const char* v,
                        const char* ahead, int64_t row_bytes, int64_t count, __m128i shift,
                        __m256 (&acc)[R][W]) {
  const float* weight = weights[0] + in_chunk * TW_LANES;
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    const auto row = [&](int r) TW_ALWAYS { return _mm256_broadcast_ss(weight + r * kChunk * TW_LANES); };
    const auto value = [&](int w) TW_ALWAYS { return load_column<kDtype, W>(v, w, count, shift); };
    TW_UNROLL
    for (int at = 0; at < bytes_of<kDtype>(W * 8); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T1);
    if (kWhole) {
      tw_multiply_avx2(acc, row, value);
      continue;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      if (!(block.visible[r][tile] >> j & 1)) continue;
      TW_UNROLL
      for (int w = 0; w < W; ++w) tw_add_product_avx2(acc[r][w], row(r), value(w));
    }
  }
}

// Computes the sums of V for R rows and W vectors of V from `column` on, of which `count` elements
// exist if W is 1.
template <int kDtype, int R, int W>
void weigh_values(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin, int end,
                  int v_dim, int column, float* out) {
  const auto row_bytes = (int64_t)tw_kv_row_bytes(kDtype, v_dim);
  const int64_t count = W == 1 ? v_dim - column : 8;
  const ColumnOffset<kDtype> offset(column);
  __m256 acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * v_dim + column + w * 8;
      acc[r][w] = begin == block.tile_begin ? _mm256_setzero_ps() : tw_load_avx2(from, count);
    }
  }
  for (int tile = begin; tile < end; ++tile) {
    const char *v = tiles.v[tile] + offset.bytes, *ahead = tiles.k[tile + kChunk] + offset.bytes;
    const int in_chunk = tile - begin;
    if (block.rescaled >> in_chunk & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 rescale = _mm256_broadcast_ss(&block.rescale[r][in_chunk]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = _mm256_mul_ps(acc[r][w], rescale);
      }
    }
    if (block.whole[tile]) {
      add_tile<kDtype, true>(block, weight, tile, in_chunk, v, ahead, row_bytes, count, offset.shift, acc);
    } else {
      add_tile<kDtype, false>(block, weight, tile, in_chunk, v, ahead, row_bytes, count, offset.shift, acc);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w)
      tw_store_avx2(out, TW_F32, (int64_t)r * v_dim + column + w * 8, count, acc[r][w]);
  }
}

// Computes the sums of V for columns [column, end_column), which begin at a multiple of 32.
template <int kDtype, int R>
void weigh_columns(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                   int end, int v_dim, int column, int end_column, float* out) {
  constexpr int kVectors = R == 1 ? 8 : R <= 3 ? 4 : 2;  // vectors of V that are summed together
  for (; column + kVectors * 8 <= end_column; column += kVectors * 8) {
    weigh_values<kDtype, R, kVectors>(block, weight, tiles, begin, end, v_dim, column, out);
  }
  for (; column < end_column; column += 8) {
    weigh_values<kDtype, R, 1>(block, weight, tiles, begin, end, v_dim, column, out);
  }
}

// Computes the sums of V for a chunk. The int4 cache has a specialization.
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

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  float* out = a->acc + row * a->v_dim;
  constexpr int kTiles = R == 1 ? 4 : R <= 3 ? 2 : 1;  // tiles whose scores are summed together
  Values<Scores::kDtype> values(a);
  for (int begin = block.tile_begin; begin < block.tile_end; begin += kChunk) {
    const int end = begin + kChunk < block.tile_end ? begin + kChunk : block.tile_end;
    for (int tile = begin; tile < end;) {
      float* score = block.weight[0] + (tile - begin) * TW_LANES;
      if (tile + kTiles <= end) {
        Scores::template tiles<R, kTiles>(tiles.k + tile, tiles.v + tile, q, a->head_dim, score);
        tile += kTiles;
      } else {
        Scores::template tiles<R, 1>(tiles.k + tile, tiles.v + tile, q, a->head_dim, score);
        ++tile;
      }
    }
    soften(a, block, R, begin, end);
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
    static constexpr Attend kAttend[kMaxRows] = {attend_rows<Scores, 1>, attend_rows<Scores, 2>,
                                                 attend_rows<Scores, 3>, attend_rows<Scores, 4>,
                                                 attend_rows<Scores, 5>, attend_rows<Scores, 6>};
    return kAttend[count - 1];
  }
  static float tree_sum(const float* lanes) {
    return tw_tree_sum_avx2(_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8));
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_
