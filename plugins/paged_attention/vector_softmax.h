// The online softmax of the attention kernels of an instruction set `Set` with vectors of 8 lanes (Avx2 or
// Neon), and the state that their steps share.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_SOFTMAX_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_SOFTMAX_H_

#include "plugins/common/vector_tanh.h"
#include "plugins/paged_attention/row_block.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kMaxRows = 6;
using RowBlock = Rows<kMaxRows>;

// Returns the scores of 8 positions, of which the first is position `first` of the split.
template <typename Set, bool kCapped, bool kSloped>
TW_INLINE typename Set::Vector final_score(const tw_attention_args* a, const RowBlock& block, int row,
                                           int first, const float* dot) {
  auto score = Set::mul(Set::load(dot, Set::kLanes), Set::all(a->scale));
  if (kCapped) {
    const auto softcap = Set::all(a->softcap);
    score = Set::mul(softcap, tanh_lanes<Set>(Set::div(score, softcap)));
  }
  if (!kSloped) return score;
  return Set::fma(Set::all(block.slope[row]), Set::counted_from(block.start[row] + first), score);
}

// Updates the softmax of one row with one tile, of which the row sees `visible`. A tile in which the row sees
// nothing is left out.
template <typename Set, bool kCapped, bool kSloped>
inline void soften_tile(const tw_attention_args* a, RowBlock& block, int row, int tile, int in_chunk) {
  static_assert(2 * Set::kLanes == TW_LANES);
  const unsigned visible = block.visible[row][tile];
  float* weight = block.weight[row] + in_chunk * TW_LANES;
  block.rescale[row][in_chunk] = 1.0f;
  if (!visible) return;
  const typename Set::Mask seen[2] = {Set::lanes_of(visible), Set::lanes_of(visible >> Set::kLanes)};
  typename Set::Vector score[2], sum[2], p[2];
  TW_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int lane = i * Set::kLanes, first = block.number[tile] * TW_LANES + lane;
    const auto all = final_score<Set, kCapped, kSloped>(a, block, row, first, weight + lane);
    score[i] = Set::choose(seen[i], all, Set::all(-INFINITY));
    sum[i] = Set::load(block.sum[row] + lane, Set::kLanes);
  }
  const float tile_max = Set::largest(score), max = block.max[row];
  const float higher = max > tile_max ? max : tile_max;
  if (!(higher == max)) {
    const auto rescale = Set::exp_falling(Set::all(max - higher));
    TW_UNROLL
    for (int i = 0; i < 2; ++i) sum[i] = Set::mul(sum[i], rescale);
    block.rescale[row][in_chunk] = Set::first_lane(rescale);
    block.rescaled |= 1u << in_chunk;
  }
  TW_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int lane = i * Set::kLanes;
    p[i] = Set::exp_falling(Set::sub(score[i], Set::all(higher)));
    Set::put(weight + lane, p[i]);
    Set::put(block.sum[row] + lane, Set::choose(seen[i], Set::add(sum[i], p[i]), sum[i]));
  }
  block.max[row] = higher;
  if (!a->tile_sum) return;
  const int64_t at = noted_at(a, block, row, tile);
  TW_UNROLL
  for (int i = 0; i < 2; ++i) p[i] = Set::choose(seen[i], p[i], Set::all(0.0f));
  a->tile_max[at] = higher;
  a->tile_sum[at] = Set::tree_sum(p);
}

template <typename Set, bool kCapped, bool kSloped>
inline void soften_as(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  block.rescaled = 0;
  for (int tile = begin; tile < end; ++tile) {
    for (int r = 0; r < rows; ++r) soften_tile<Set, kCapped, kSloped>(a, block, r, tile, tile - begin);
  }
}

// Turns the scores of tiles [begin, end), at most a chunk, into weights.
template <typename Set>
inline void soften(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  if (a->slopes) {
    a->softcap != 0 ? soften_as<Set, true, true>(a, block, rows, begin, end)
                    : soften_as<Set, false, true>(a, block, rows, begin, end);
  } else {
    a->softcap != 0 ? soften_as<Set, true, false>(a, block, rows, begin, end)
                    : soften_as<Set, false, false>(a, block, rows, begin, end);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_SOFTMAX_H_
