// The online softmax of the NEON attention kernels, and the state that their steps share.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_SOFTMAX_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_SOFTMAX_H_

#include "plugins/common/arm_neon.h"
#include "plugins/common/vector_tanh.h"
#include "plugins/paged_attention/row_block.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kMaxRows = 6;
using RowBlock = Rows<kMaxRows>;

// Returns the scores of 8 positions, of which the first is position `first` of the split.
template <bool kCapped, bool kSloped>
TW_INLINE Eight final_score(const tw_attention_args* a, const RowBlock& block, int row, int first,
                            const float* dot) {
  Eight score = Neon::mul(load_eight(dot, 8), Neon::all(a->scale));
  if (kCapped) {
    const Eight softcap = Neon::all(a->softcap);
    score = Neon::mul(softcap, tanh_lanes<Neon>(Neon::div(score, softcap)));
  }
  if (!kSloped) return score;
  const int32x4_t lane = {0, 1, 2, 3}, ahead = vaddq_s32(vdupq_n_s32(block.start[row] + first), lane);
  const Eight distance = {vcvtq_f32_s32(ahead), vcvtq_f32_s32(vaddq_s32(ahead, vdupq_n_s32(4)))};
  return Neon::fma(Neon::all(block.slope[row]), distance, score);
}

// Returns all ones in the lanes whose bit is set.
TW_INLINE EightBits lanes_of(unsigned bits) {
  const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128}, all = vdupq_n_u32(bits);
  return {vtstq_u32(all, low), vtstq_u32(all, high)};
}

TW_INLINE float largest(Eight low, Eight high) {
  const Eight both = Neon::max(low, high);
  const float32x4_t four = larger(both.a, both.b);
  const float32x4_t two = larger(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}

// Updates the softmax of one row with one tile, of which the row sees `visible`. A tile in which the row sees
// nothing is left out.
template <bool kCapped, bool kSloped>
inline void soften_tile(const tw_attention_args* a, RowBlock& block, int row, int tile, int in_chunk) {
  const unsigned visible = block.visible[row][tile];
  float* weight = block.weight[row] + in_chunk * TW_LANES;
  block.rescale[row][in_chunk] = 1.0f;
  if (!visible) return;
  const EightBits seen[2] = {lanes_of(visible), lanes_of(visible >> 8)};
  Eight score[2], sum[2];
  TW_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int first = block.number[tile] * TW_LANES + 8 * i;
    const Eight all = final_score<kCapped, kSloped>(a, block, row, first, weight + 8 * i);
    score[i] = Neon::choose(seen[i], all, Neon::all(-INFINITY));
    sum[i] = load_eight(block.sum[row] + 8 * i, 8);
  }
  const float tile_max = largest(score[0], score[1]), max = block.max[row];
  const float higher = max > tile_max ? max : tile_max;
  if (!(higher == max)) {
    const float32x4_t rescale = exp_of_falling(vdupq_n_f32(max - higher));
    TW_UNROLL
    for (int i = 0; i < 2; ++i) sum[i] = Neon::mul(sum[i], {rescale, rescale});
    block.rescale[row][in_chunk] = vgetq_lane_f32(rescale, 0);
    block.rescaled |= 1u << in_chunk;
  }
  Eight own[2];
  TW_UNROLL
  for (int i = 0; i < 2; ++i) {
    const Eight p = Neon::exp_falling(Neon::sub(score[i], Neon::all(higher)));
    store_eight(weight + 8 * i, p);
    store_eight(block.sum[row] + 8 * i, Neon::choose(seen[i], Neon::add(sum[i], p), sum[i]));
    own[i] = Neon::choose(seen[i], p, Neon::all(0.0f));
  }
  block.max[row] = higher;
  if (!a->tile_sum) return;
  a->tile_max[noted_at(a, block, row, tile)] = higher;
  a->tile_sum[noted_at(a, block, row, tile)] = sum_as_tree(own[0], own[1]);
}

template <bool kCapped, bool kSloped>
inline void soften_as(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  block.rescaled = 0;
  for (int tile = begin; tile < end; ++tile) {
    for (int r = 0; r < rows; ++r) soften_tile<kCapped, kSloped>(a, block, r, tile, tile - begin);
  }
}

inline void soften(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  if (a->slopes) {
    a->softcap != 0 ? soften_as<true, true>(a, block, rows, begin, end)
                    : soften_as<false, true>(a, block, rows, begin, end);
  } else {
    a->softcap != 0 ? soften_as<true, false>(a, block, rows, begin, end)
                    : soften_as<false, false>(a, block, rows, begin, end);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_SOFTMAX_H_
