// The online softmax of the AVX2 attention kernels, and the state that their steps share.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_SOFTMAX_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_SOFTMAX_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/common/x86_avx2_tanh.h"
#include "plugins/paged_attention/row_block.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kMaxRows = 6;
using RowBlock = Rows<kMaxRows>;

// tw_exp for x <= 0 or NaN: the power of two goes straight into the exponent, which cannot overflow there.
inline __m256 exp_nonpositive(__m256 x) {
  __m256 r;
  const __m256i power = _mm256_slli_epi32(_mm256_cvttps_epi32(tw_exp_reduce_avx2(x, &r)), 23);
  const __m256 y =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(tw_exp_polynomial_avx2(r)), power));
  return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(TW_EXP_LOW), _CMP_NLT_UQ));
}

// Returns the scores of 8 positions, of which the first is position `first` of the split.
template <bool kCapped, bool kSloped>
TW_INLINE __m256 final_score(const tw_attention_args* a, const RowBlock& block, int row, int first,
                             const float* dot) {
  __m256 score = _mm256_mul_ps(_mm256_load_ps(dot), _mm256_set1_ps(a->scale));
  if (kCapped) {
    const __m256 softcap = _mm256_set1_ps(a->softcap);
    score = _mm256_mul_ps(softcap, tw_tanh_avx2(_mm256_div_ps(score, softcap)));
  }
  if (!kSloped) return score;
  const __m256i ahead = _mm256_add_epi32(_mm256_set1_epi32(block.start[row] + first),
                                         _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_fmadd_ps(_mm256_set1_ps(block.slope[row]), _mm256_cvtepi32_ps(ahead), score);
}

// Returns all ones in the lanes whose bit is set.
inline __m256 lanes_of(unsigned bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit));
}

inline float largest(__m256 low, __m256 high) {
  const __m256 h = _mm256_max_ps(low, high);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Updates the softmax of one row with one tile, of which the row sees `visible`. A tile in which the row sees
// nothing is left out.
template <bool kCapped, bool kSloped>
inline void soften_tile(const tw_attention_args* a, RowBlock& block, int row, int tile, int in_chunk) {
  const unsigned visible = block.visible[row][tile];
  float* weight = block.weight[row] + in_chunk * TW_LANES;
  block.rescale[row][in_chunk] = 1.0f;
  if (!visible) return;
  const __m256 seen[2] = {lanes_of(visible), lanes_of(visible >> 8)};
  __m256 score[2];
  for (int i = 0; i < 2; ++i) {
    const int first = block.number[tile] * TW_LANES + 8 * i;
    const __m256 all = final_score<kCapped, kSloped>(a, block, row, first, weight + 8 * i);
    score[i] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), all, seen[i]);
  }
  const float tile_max = largest(score[0], score[1]), max = block.max[row];
  const float higher = max > tile_max ? max : tile_max;
  __m256 sum[2] = {_mm256_load_ps(block.sum[row]), _mm256_load_ps(block.sum[row] + 8)};
  if (!(higher == max)) {
    const __m256 rescale = exp_nonpositive(_mm256_set1_ps(max - higher));
    for (int i = 0; i < 2; ++i) sum[i] = _mm256_mul_ps(sum[i], rescale);
    block.rescale[row][in_chunk] = _mm256_cvtss_f32(rescale);
    block.rescaled |= 1u << in_chunk;
  }
  __m256 own[2];
  for (int i = 0; i < 2; ++i) {
    const __m256 p = exp_nonpositive(_mm256_sub_ps(score[i], _mm256_set1_ps(higher)));
    _mm256_store_ps(weight + 8 * i, p);
    _mm256_store_ps(block.sum[row] + 8 * i, _mm256_blendv_ps(sum[i], _mm256_add_ps(sum[i], p), seen[i]));
    own[i] = _mm256_and_ps(p, seen[i]);
  }
  block.max[row] = higher;
  if (!a->tile_sum) return;
  a->tile_max[noted_at(a, block, row, tile)] = higher;
  a->tile_sum[noted_at(a, block, row, tile)] = tw_tree_sum_avx2(own[0], own[1]);
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

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_SOFTMAX_H_
