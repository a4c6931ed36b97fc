// Attention on AVX2: fp32, and bf16 by exact widening; the bits of scalar.cc. And the combine kernel.
//
// Up to 6 (query, head) rows go through a split together, so that each K and V vector is loaded once for all
// of them. For each chunk of tiles: scores, online softmax, sums of V by weight in registers. Every output
// lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
#include <stdint.h>

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/x86_avx2_softmax.h"

namespace tensorwright {
namespace {

// Tiles of the split, and the first ones after it as far as there are any.
struct TilePointers {
  const char *k[TW_SPLIT_TILES + kChunk], *v[TW_SPLIT_TILES + kChunk];
};

template <int kDtype>
TW_INLINE __m256 load_value(const char* v, int64_t count) {
  return kDtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)v, count)
                           : tw_load_avx2((const float*)v, count);
}

// Dot products of R rows of q, packed [head_dim][R], with N tiles of K.
template <int kDtype, int R, int N>
void score_tiles(const char* const* tile, const char* const* ahead, const float* q, int head_dim,
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

// Adds position after position of a tile. What a row does not see is added to none of its sums, not even
// times 0. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, bool kWhole, int R, int W>
TW_INLINE void add_tile(const RowBlock& block, int tile, int in_chunk, const char* v, const char* ahead,
                        int64_t row_bytes, int64_t count, __m256 (&acc)[R][W]) {
  constexpr int kVector = 8 * (kDtype == TW_BF16 ? 2 : 4);
  const float* weight = block.weight[0] + in_chunk * TW_LANES;
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    const auto row = [&](int r) TW_ALWAYS { return _mm256_broadcast_ss(weight + r * kChunk * TW_LANES); };
    const auto value = [&](int w)
                           TW_ALWAYS { return load_value<kDtype>(v + w * kVector, W == 1 ? count : 8); };
    TW_UNROLL
    for (int at = 0; at < W * kVector; at += 64) _mm_prefetch(ahead + at, _MM_HINT_T1);
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

// Sums of V for R rows and W vectors of head_dim from `column` on, of which `count` elements exist if W is 1.
template <int kDtype, int R, int W>
void weigh_values(const RowBlock& block, const TilePointers& tiles, int begin, int end, int head_dim,
                  int column, float* out) {
  const int64_t bytes = kDtype == TW_BF16 ? 2 : 4, row_bytes = head_dim * bytes;
  const int64_t count = W == 1 ? head_dim - column : 8;
  __m256 acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * head_dim + column + w * 8;
      acc[r][w] = begin == block.tile_begin ? _mm256_setzero_ps() : tw_load_avx2(from, count);
    }
  }
  for (int tile = begin; tile < end; ++tile) {
    const char *v = tiles.v[tile] + column * bytes, *ahead = tiles.k[tile + kChunk] + column * bytes;
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
      add_tile<kDtype, true>(block, tile, in_chunk, v, ahead, row_bytes, count, acc);
    } else {
      add_tile<kDtype, false>(block, tile, in_chunk, v, ahead, row_bytes, count, acc);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w)
      tw_store_avx2(out, TW_F32, (int64_t)r * head_dim + column + w * 8, count, acc[r][w]);
  }
}

template <int kDtype, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, const float* q,
                 float* out) {
  constexpr int kTiles = R == 1 ? 4 : R <= 3 ? 2 : 1;    // whose scores are summed together
  constexpr int kVectors = R == 1 ? 8 : R <= 3 ? 4 : 2;  // of head_dim that are summed together
  for (int begin = block.tile_begin; begin < block.tile_end; begin += kChunk) {
    const int end = begin + kChunk < block.tile_end ? begin + kChunk : block.tile_end;
    for (int tile = begin; tile < end;) {
      float* score = block.weight[0] + (tile - begin) * TW_LANES;
      if (tile + kTiles <= end) {
        score_tiles<kDtype, R, kTiles>(tiles.k + tile, tiles.v + tile, q, a->head_dim, score);
        tile += kTiles;
      } else {
        score_tiles<kDtype, R, 1>(tiles.k + tile, tiles.v + tile, q, a->head_dim, score);
        ++tile;
      }
    }
    a->softcap != 0 ? soften<true>(a, block, R, begin, end) : soften<false>(a, block, R, begin, end);
    int column = 0;
    for (; column + kVectors * 8 <= a->head_dim; column += kVectors * 8) {
      weigh_values<kDtype, R, kVectors>(block, tiles, begin, end, a->head_dim, column, out);
    }
    for (; column < a->head_dim; column += 8) {
      weigh_values<kDtype, R, 1>(block, tiles, begin, end, a->head_dim, column, out);
    }
  }
}

// What rows [row, row + rows) see, row = query * group + head. False if that is nothing.
bool look(const tw_attention_args* a, int64_t row, int rows, RowBlock& block) {
  tw_visible range[kMaxRows];
  int begin = TW_ATTENTION_SPLIT, end = 0;
  for (int r = 0; r < rows; ++r) {
    range[r] = tw_visible_positions(a, (int32_t)((row + r) / a->group));
    block.max[r] = -INFINITY;
    memset(block.sum[r], 0, sizeof block.sum[r]);
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
  return begin < end;
}

// Where the tiles lie that some query sees. Those that do not exist stand for the last one, which is fetched
// ahead in their place.
void find_tiles(const tw_attention_args* a, int dtype, TilePointers& tiles) {
  const int64_t start = (int64_t)a->split * TW_ATTENTION_SPLIT;
  const int64_t begin = a->window > 0 ? (int64_t)a->first_position - a->window + 1 - start : 0;
  const int64_t end = (int64_t)a->first_position + a->queries - start;
  const char *k = NULL, *v = NULL;
  for (int tile = begin > 0 ? (int)(begin / TW_LANES) : 0; tile < TW_SPLIT_TILES + kChunk; ++tile) {
    if (tile * TW_LANES < end) {
      int32_t position;
      const char* page = tw_split_block(a, tile, &position);
      k = page + tw_kv_k_offset(dtype, a->head_dim, position, 0);
      v = page + tw_kv_v_offset(dtype, a->head_dim, a->block_size, position, 0);
    }
    tiles.k[tile] = k;
    tiles.v[tile] = v;
  }
}

// q of a row block, packed [head_dim][rows] so that one base register reaches every broadcast.
template <int kDtype>
void pack_q(const tw_attention_args* a, int64_t row, int rows, float* to) {
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (row + r) / a->group * a->q_stride + (row + r) % a->group * a->head_dim;
    for (int d = 0; d < a->head_dim; ++d) {
      const uint16_t* h = (const uint16_t*)a->q + at + d;
      to[d * rows + r] = kDtype == TW_BF16 ? tw_bf16_to_f32(*h) : ((const float*)a->q)[at + d];
    }
  }
}

template <int kDtype>
void attend(const tw_attention_args* a) {
  typedef void (*Attend)(const tw_attention_args*, RowBlock&, const TilePointers&, const float*, float*);
  static const Attend kAttend[kMaxRows] = {attend_rows<kDtype, 1>, attend_rows<kDtype, 2>,
                                           attend_rows<kDtype, 3>, attend_rows<kDtype, 4>,
                                           attend_rows<kDtype, 5>, attend_rows<kDtype, 6>};
  const int64_t rows = (int64_t)a->queries * a->group, blocks = (rows + kMaxRows - 1) / kMaxRows;
  float* q = (float*)__builtin_alloca((size_t)a->head_dim * kMaxRows * sizeof(float));
  RowBlock block;
  TilePointers tiles;
  find_tiles(a, kDtype, tiles);
  for (int64_t i = 0, row = 0; i < blocks; ++i) {
    const int count = (int)(rows * (i + 1) / blocks - row);  // blocks of nearly equal size
    float* acc = a->acc + row * a->head_dim;
    if (look(a, row, count, block)) {
      pack_q<kDtype>(a, row, count, q);
      kAttend[count - 1](a, block, tiles, q, acc);
    } else {
      memset(acc, 0, (size_t)count * a->head_dim * sizeof(float));
    }
    for (int r = 0; r < count; ++r) {
      a->max[row + r] = block.max[r] + 0.0f;  // as in scalar.cc
      a->sum[row + r] = tw_tree_sum_avx2(_mm256_load_ps(block.sum[r]), _mm256_load_ps(block.sum[r] + 8));
    }
    row += count;
  }
}

// 8 columns of one row: the splits in ascending order. The first that the row sees something of is taken as
// it is.
void fold_columns(const tw_attention_combine_args* a, int64_t row, int column) {
  const int64_t count = a->head_dim - column;
  float max = -INFINITY, sum = 0;
  __m256 acc = _mm256_setzero_ps();
  for (int64_t split = 0; split < a->splits; ++split) {
    const int64_t at = split * a->rows + row;
    if (a->max[at] == -INFINITY) continue;
    const __m256 value = tw_load_avx2(a->acc + at * a->head_dim + column, count);
    if (max == -INFINITY) {
      max = a->max[at], sum = a->sum[at], acc = value;
      continue;
    }
    const float higher = max > a->max[at] ? max : a->max[at];
    const float mine = tw_exp(max - higher), other = tw_exp(a->max[at] - higher);
    sum = fmaf(a->sum[at], other, sum * mine);
    acc = _mm256_fmadd_ps(value, _mm256_set1_ps(other), _mm256_mul_ps(acc, _mm256_set1_ps(mine)));
    max = higher;
  }
  tw_store_avx2(a->y, a->y_dtype, a->y_offsets[row] + column, count, _mm256_div_ps(acc, _mm256_set1_ps(sum)));
}

}  // namespace

void attention_f32_avx2(const tw_attention_args* a) { attend<TW_F32>(a); }
void attention_bf16_avx2(const tw_attention_args* a) { attend<TW_BF16>(a); }

void attention_combine_avx2(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int column = 0; column < a->head_dim; column += TW_LANES_AVX2) fold_columns(a, row, column);
  }
}

}  // namespace tensorwright
