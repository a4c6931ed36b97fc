// Attention on NEON, shared by arm_neon.cc and arm_neondot.cc.
//
// A row is one (query, head). Up to 6 rows go through a split together, so that K and V are read once for all
// of them. For each chunk of tiles: scores, online softmax, sums of V by weight in registers. Every output
// lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_

#include "plugins/paged_attention/arm_softmax.h"

namespace {

// The bytes of `columns` columns of V, a multiple of 32 for int4.
template <int kDtype>
constexpr int bytes_of(int columns) {
  return kDtype == TW_I4     ? columns / 2
         : kDtype == TW_I8   ? columns
         : kDtype == TW_BF16 ? 2 * columns
                             : 4 * columns;
}

// Returns 8 bytes, of which the first `count` are read; the others are zeros.
TW_INLINE uint8x8_t eight_bytes(const char* from, int64_t count) {
  if (count >= 8) return vld1_u8((const uint8_t*)from);
  uint8_t byte[8] = {0};
  for (int64_t i = 0; i < count; ++i) byte[i] = (uint8_t)from[i];
  return vld1_u8(byte);
}

// Returns signed bytes as floats.
TW_INLINE Eight floats_of(int8x8_t bytes) {
  const int16x8_t words = vmovl_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}

// Points at column `column` of a row of V. In an int4 page the columns 16 to 31 of 32 lie where the first 16
// do: in the upper halves of the bytes.
template <int kDtype>
struct ColumnOffset {
  int64_t bytes;
  int8x8_t shift;  // to the left
  explicit ColumnOffset(int column)
      : bytes(kDtype == TW_I4 ? column / 32 * 16 + column % 16 : (int64_t)bytes_of<kDtype>(column)),
        shift(vdup_n_s8((int8_t)(column / 16 % 2 * -4))) {}
};

// Loads vector w of W vectors of a row of V. Rows of an int4 page are padded to runs of 32 columns.
template <int kDtype, int W>
TW_INLINE Eight load_column(const char* v, int w, int64_t count, int8x8_t shift) {
  if constexpr (kDtype == TW_I4) {
    const uint8x8_t eight = vld1_u8((const uint8_t*)(v + w / 4 * 16 + w % 2 * 8));
    const uint8x8_t moved = W <= 2 ? vshl_u8(eight, shift) : w / 2 % 2 ? vshr_n_u8(eight, 4) : eight;
    return floats_of(vreinterpret_s8_u8(vand_u8(moved, vdup_n_u8(15))));
  } else {
    const char* from = v + bytes_of<kDtype>(w * 8);
    const int64_t left = W == 1 ? count : 8;
    if constexpr (kDtype == TW_I8) return floats_of(vreinterpret_s8_u8(eight_bytes(from, left)));
    if constexpr (kDtype != TW_I8) return load_eight_of(kDtype, from, 0, left);
  }
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
  __attribute__((noinline)) static void tiles(const char* const* tile, const char* const* ahead,
                                              const float* q, int head_dim, float* out) {
    float32x4_t acc[R][4 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * N; ++i) acc[r][i] = vdupq_n_f32(0.0f);
    }
    const int64_t bytes = (int64_t)tw_panel_bytes(kDtype, (size_t)head_dim);
    for (int64_t at = 0; at < bytes; at += 64) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) __builtin_prefetch(ahead[n] + at);
      if constexpr (kDtype == TW_BF16) {
        add(acc, q, [&](int i) TW_ALWAYS { return first_halves(tile[i / 4] + at + i % 4 * 16); });
        q += R;
        __asm__("" : "+r"(q));  // makes the compiler load K again: no registers are free to keep it
        add(acc, q, [&](int i) TW_ALWAYS { return second_halves(tile[i / 4] + at + i % 4 * 16); });
      } else {
        add(acc, q, [&](int i) TW_ALWAYS { return vld1q_f32((const float*)(tile[i / 4] + at) + i % 4 * 4); });
      }
      q += R;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * N; ++i) vst1q_f32(out + r * kChunk * TW_LANES + i * 4, acc[r][i]);
    }
  }

 private:
  // Computes acc[r][i] += q[r] * k(i).
  template <int R, int N, class K>
  static TW_INLINE void add(float32x4_t (&acc)[R][N], const float* q, K k) {
    if constexpr (R == 1) {
      const float32x4_t row = vld1q_dup_f32(q);
      TW_UNROLL
      for (int i = 0; i < N; ++i) acc[0][i] = vfmaq_f32(acc[0][i], row, k(i));
    } else {
      float32x4_t value[N];
      TW_UNROLL
      for (int i = 0; i < N; ++i) value[i] = k(i);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const float32x4_t row = vld1q_dup_f32(q + r);
        TW_UNROLL
        for (int i = 0; i < N; ++i) acc[r][i] = vfmaq_f32(acc[r][i], row, value[i]);
      }
    }
  }
};

// Adds position after position of a tile. Positions that a row does not see are not added to the row's sums,
// not even times 0. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int kDtype, bool kWhole, int R, int W>
TW_INLINE void add_tile(const RowBlock& block, const Weights& weights, int tile, int in_chunk, const char* v,
                        const char* ahead, int64_t row_bytes, int64_t count, int8x8_t shift,
                        Eight (&acc)[R][W]) {
  const float* weight = weights[0] + in_chunk * TW_LANES;
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    for (int at = 0; at < bytes_of<kDtype>(W * 8); at += 64) __builtin_prefetch(ahead + at);
    Eight value[W];
    TW_UNROLL
    for (int w = 0; w < W; ++w) value[w] = load_column<kDtype, W>(v, w, count, shift);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      if (!kWhole && !(block.visible[r][tile] >> j & 1)) continue;
      const float32x4_t row = vld1q_dup_f32(weight + r * kChunk * TW_LANES);
      TW_UNROLL
      for (int w = 0; w < W; ++w) acc[r][w] = Neon::fma({row, row}, value[w], acc[r][w]);
    }
  }
}

// Computes the sums of V for R rows and W vectors of V from `column` on, of which `count` elements
// exist if W is 1. Inside its caller it would have too few registers.
template <int kDtype, int R, int W>
__attribute__((noinline)) void weigh_values(const RowBlock& block, const Weights& weight,
                                            const TilePointers& tiles, int begin, int end, int v_dim,
                                            int column, float* out) {
  const auto row_bytes = (int64_t)tw_kv_row_bytes(kDtype, v_dim);
  const int64_t count = W == 1 ? v_dim - column : 8;
  const ColumnOffset<kDtype> offset(column);
  Eight acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * v_dim + column + w * 8;
      acc[r][w] = begin == block.tile_begin ? Neon::all(0.0f) : load_eight(from, count);
    }
  }
  for (int tile = begin; tile < end; ++tile) {
    const char *v = tiles.v[tile] + offset.bytes, *ahead = tiles.k[tile + kChunk] + offset.bytes;
    const int in_chunk = tile - begin;
    if (block.rescaled >> in_chunk & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const float32x4_t rescale = vdupq_n_f32(block.rescale[r][in_chunk]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = Neon::mul(acc[r][w], {rescale, rescale});
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
      Neon::store(out, TW_F32, (int64_t)r * v_dim + column + w * 8, count, acc[r][w]);
  }
}

// Computes the sums of V for columns [column, end_column), which begin at a multiple of 32.
template <int kDtype, int R>
void weigh_columns(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                   int end, int v_dim, int column, int end_column, float* out) {
  constexpr int kVectors = R == 1 ? 8 : R <= 2 ? 4 : 2;  // vectors of V that are summed together
  for (; column + kVectors * 8 <= end_column; column += kVectors * 8) {
    weigh_values<kDtype, R, kVectors>(block, weight, tiles, begin, end, v_dim, column, out);
  }
  for (; column < end_column; column += 8) {
    weigh_values<kDtype, R, 1>(block, weight, tiles, begin, end, v_dim, column, out);
  }
}

// Multiplies the weights with the scales of V of an int8 page.
template <int R>
inline void scale_weights(RowBlock& block, const TilePointers& tiles, int begin, int end) {
  for (int tile = begin; tile < end; ++tile) {
    for (int lane = 0; lane < TW_LANES; lane += 8) {
      const Eight scale = load_eight((const float*)tiles.v_scale[tile] + lane, 8);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        float* weight = block.weight[r] + (tile - begin) * TW_LANES + lane;
        store_eight(weight, Neon::mul(load_eight(weight, 8), scale));
      }
    }
  }
}

// Computes the sums of V for a chunk. The int4 cache has a specialization.
template <int kDtype>
struct Values {
  explicit Values(const tw_attention_args*) {}

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    if (kDtype == TW_I8) scale_weights<R>(block, tiles, begin, end);
    weigh_columns<kDtype, R>(block, block.weight, tiles, begin, end, a->v_dim, 0, a->v_dim, out);
  }
  template <int R>
  void finish(const tw_attention_args*, float*) {}
};

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  float* out = a->acc + row * a->v_dim;
  constexpr int kTiles = R == 1 ? 4 : R == 2 ? 2 : 1;  // tiles whose scores are summed together
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
    return sum_as_tree(load_eight(lanes, 8), load_eight(lanes + 8, 8));
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_
