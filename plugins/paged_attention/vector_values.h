// Attention with vectors of 8 lanes, for the kernels of AVX2 and NEON.
//
// A row is one (query, head). Up to 6 rows go through a split together, so that K and V are read once for all
// of them. For each chunk of tiles: scores, online softmax, sums of V by weight in registers. Every output
// lane sees the operations of scalar.cc in the same order; grouping and chunks change no bit.
//
// `Way` is what an instruction set does in its own manner:
//   Set                    the instruction set of plugins/common
//   Shift, shift_of        how far a column of an int4 page is moved in its byte, and how that is held
//   load_column            vector w of W vectors of a row of V, as floats
//   multiply               acc[r][w] += row(r) * value(w), for all r and w
//   add_product            acc += x * y
//   Scales                 the scales and offsets of 8 positions of an int4 page
//   fetch, fetch_near      ask for memory ahead: V and K, and what is read next
//   weigh                  calls weigh_vectors, in a function of its own where registers would be too few
//   vectors, tiles         how many vectors of V, and how many tiles of scores, are summed together
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_VALUES_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_VALUES_H_

#include "plugins/paged_attention/vector_softmax.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// The bytes of `columns` columns of V, a multiple of 32 for int4.
template <int kDtype>
constexpr int bytes_of(int columns) {
  return kDtype == TW_I4     ? columns / 2
         : kDtype == TW_I8   ? columns
         : kDtype == TW_BF16 ? 2 * columns
                             : 4 * columns;
}

// Points at column `column` of a row of V. In an int4 page the columns 16 to 31 of 32 lie where the first 16
// do: in the upper halves of the bytes.
template <typename Way, int kDtype>
struct ColumnOffset {
  int64_t bytes;
  typename Way::Shift shift;
  explicit ColumnOffset(int column)
      : bytes(kDtype == TW_I4 ? column / 32 * 16 + column % 16 : (int64_t)bytes_of<kDtype>(column)),
        shift(Way::shift_of(column)) {}
};

// The weights of a chunk's positions for each row.
using Weights = float[kMaxRows][kChunk * TW_LANES];

// Adds position after position of a tile. Positions that a row does not see are not added to the row's sums,
// not even times 0. `ahead` is as long as the tile of V and is fetched meanwhile.
template <typename Way, int kDtype, bool kWhole, int R, int W>
TW_INLINE void add_tile(const RowBlock& block, const Weights& weights, int tile, int in_chunk, const char* v,
                        const char* ahead, int64_t row_bytes, int64_t count, typename Way::Shift shift,
                        typename Way::Set::Vector (&acc)[R][W]) {
  const float* weight = weights[0] + in_chunk * TW_LANES;
  for (int j = 0; j < TW_LANES; ++j, v += row_bytes, ahead += row_bytes, ++weight) {
    const auto row = [&](int r) TW_ALWAYS { return Way::Set::all(weight[r * kChunk * TW_LANES]); };
    const auto value = [&](int w)
                           TW_ALWAYS { return Way::template load_column<kDtype, W>(v, w, count, shift); };
    TW_UNROLL
    for (int at = 0; at < bytes_of<kDtype>(W * 8); at += 64) Way::fetch(ahead + at);
    if (kWhole) {
      Way::multiply(acc, row, value);
      continue;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      if (!(block.visible[r][tile] >> j & 1)) continue;
      TW_UNROLL
      for (int w = 0; w < W; ++w) Way::add_product(acc[r][w], row(r), value(w));
    }
  }
}

// Computes the sums of V for R rows and W vectors of V from `column` on, of which `count` elements
// exist if W is 1.
template <typename Way, int kDtype, int R, int W>
TW_INLINE void weigh_vectors(const RowBlock& block, const Weights& weight, const TilePointers& tiles,
                             int begin, int end, int v_dim, int column, float* out) {
  using Set = typename Way::Set;
  const auto row_bytes = (int64_t)tw_kv_row_bytes(kDtype, v_dim);
  const int64_t count = W == 1 ? v_dim - column : 8;
  const ColumnOffset<Way, kDtype> offset(column);
  typename Set::Vector acc[R][W];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w) {
      const float* from = out + (int64_t)r * v_dim + column + w * 8;
      acc[r][w] = begin == block.tile_begin ? Set::all(0.0f) : Set::load(from, count);
    }
  }
  for (int tile = begin; tile < end; ++tile) {
    const char *v = tiles.v[tile] + offset.bytes, *ahead = tiles.k[tile + kChunk] + offset.bytes;
    const int in_chunk = tile - begin;
    if (block.rescaled >> in_chunk & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto rescale = Set::all(block.rescale[r][in_chunk]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = Set::mul(acc[r][w], rescale);
      }
    }
    if (block.whole[tile]) {
      add_tile<Way, kDtype, true>(block, weight, tile, in_chunk, v, ahead, row_bytes, count, offset.shift,
                                  acc);
    } else {
      add_tile<Way, kDtype, false>(block, weight, tile, in_chunk, v, ahead, row_bytes, count, offset.shift,
                                   acc);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int w = 0; w < W; ++w)
      Set::store(out, TW_F32, (int64_t)r * v_dim + column + w * 8, count, acc[r][w]);
  }
}

// Computes the sums of V for columns [column, end_column), which begin at a multiple of 32.
template <typename Way, int kDtype, int R>
void weigh_columns(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                   int end, int v_dim, int column, int end_column, float* out) {
  constexpr int kVectors = Way::vectors(R);
  for (; column + kVectors * 8 <= end_column; column += kVectors * 8) {
    Way::template weigh<kDtype, R, kVectors>(block, weight, tiles, begin, end, v_dim, column, out);
  }
  for (; column < end_column; column += 8) {
    Way::template weigh<kDtype, R, 1>(block, weight, tiles, begin, end, v_dim, column, out);
  }
}

// Multiplies the weights with the scales of V of an int8 page. Also fetches the next chunk's scales, which
// lie behind K panels and V rows.
template <typename Way, int R>
inline void scale_weights(RowBlock& block, const TilePointers& tiles, int begin, int end, int head_dim) {
  using Set = typename Way::Set;
  const size_t panel_bytes = tw_panel_bytes(TW_I8, (size_t)head_dim);
  for (int tile = begin; tile < end; ++tile) {
    Way::fetch_near((const char*)tiles.v_scale[tile + kChunk]);
    Way::fetch_near(tiles.k[tile + kChunk] + panel_bytes);
    for (int lane = 0; lane < TW_LANES; lane += 8) {
      const auto scale = Set::load((const float*)tiles.v_scale[tile] + lane, 8);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        float* weight = block.weight[r] + (tile - begin) * TW_LANES + lane;
        Set::put(weight, Set::mul(Set::load(weight, 8), scale));
      }
    }
  }
}

// Computes the sums of V for a chunk. The int4 cache has a specialization.
template <typename Way, int kDtype>
struct Values {
  explicit Values(const tw_attention_args*) {}

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    if (kDtype == TW_I8) scale_weights<Way, R>(block, tiles, begin, end, a->head_dim);
    weigh_columns<Way, kDtype, R>(block, block.weight, tiles, begin, end, a->v_dim, 0, a->v_dim, out);
  }
  template <int R>
  void finish(const tw_attention_args*, float*) {}
};

// The weights times the scales of one group of columns, and the sums of weights times offsets of every group.
template <typename Way>
struct Values<Way, TW_I4> {
  using Set = typename Way::Set;
  alignas(64) Weights scaled;
  alignas(64) float offset_sum[TW_MAX_KV_GROUPS][kMaxRows][TW_LANES];

  explicit Values(const tw_attention_args* a) {
    memset(offset_sum, 0, (size_t)tw_kv_scales(TW_I4, a->head_dim) * sizeof offset_sum[0]);
  }

  template <int R>
  void scale_group(const tw_attention_args* a, const RowBlock& block, const TilePointers& tiles, int begin,
                   int end, int group) {
    const int64_t at = (int64_t)group * a->block_size * 4;
    for (int tile = begin; tile < end; ++tile) {
      Way::fetch_near((const char*)tiles.v_scale[tile + kChunk] + at);
      for (int half = 0; half < TW_LANES; half += 8) {
        const typename Way::Scales v((const char*)tiles.v_scale[tile] + at + 4 * half);
        const int lane = (tile - begin) * TW_LANES + half;
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const auto p = Set::load(block.weight[r] + lane, 8);
          Set::put(scaled[r] + lane, Set::mul(p, v.scale));
          float* to = offset_sum[group][r] + half;
          const auto sum = Set::mul(Set::load(to, 8), Set::all(block.rescale[r][tile - begin]));
          const auto seen = Set::lanes_of((unsigned)block.visible[r][tile] >> half);
          Set::put(to, Set::choose(seen, Set::fma(p, v.offset, sum), sum));
        }
      }
    }
  }

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    for (int column = 0; column < a->v_dim; column += TW_KV_GROUP) {
      const int end_column = column + TW_KV_GROUP < a->v_dim ? column + (int)TW_KV_GROUP : a->v_dim;
      scale_group<R>(a, block, tiles, begin, end, column / TW_KV_GROUP);
      weigh_columns<Way, TW_I4, R>(block, scaled, tiles, begin, end, a->v_dim, column, end_column, out);
    }
  }

  template <int R>
  void finish(const tw_attention_args* a, float* out) {
    for (int r = 0; r < R; ++r, out += a->v_dim) {
      for (int column = 0; column < a->v_dim; column += 8) {
        const float* lanes = offset_sum[column / TW_KV_GROUP][r];
        const typename Set::Vector both[2] = {Set::load(lanes, 8), Set::load(lanes + 8, 8)};
        const auto acc = Set::load(out + column, a->v_dim - column);
        Set::store(out, TW_F32, column, a->v_dim - column, Set::add(acc, Set::all(Set::tree_sum(both))));
      }
    }
  }
};

template <typename Scores, int R>
void attend_rows(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles,
                 const typename Scores::Q* q, int64_t row) {
  using Way = typename Scores::Way;
  float* out = a->acc + row * a->v_dim;
  constexpr int kTiles = Way::tiles(R);
  Values<Way, Scores::kDtype> values(a);
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
    soften<typename Way::Set>(a, block, R, begin, end);
    values.template add<R>(a, block, tiles, begin, end, out);
  }
  values.template finish<R>(a, out);
}

// The Kernel of attend() in row_block.h, for one way to compute scores.
template <typename Scores>
struct Attention : Scores {
  using Set = typename Scores::Way::Set;
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
    const typename Set::Vector both[2] = {Set::load(lanes, 8), Set::load(lanes + 8, 8)};
    return Set::tree_sum(both);
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_VALUES_H_
