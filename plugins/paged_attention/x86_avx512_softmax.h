// The online softmax of the AVX-512 attention kernels, which is step 2 of x86_avx512.h, and the state that
// the steps share.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_SOFTMAX_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_SOFTMAX_H_

#include "plugins/common/x86_avx512.h"
#include "plugins/common/x86_avx512_tanh.h"
#include "plugins/paged_attention/row_block.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kMaxRows = 8;
using RowBlock = Rows<kMaxRows>;
static_assert(kChunk == 4);  // soften_chunk is written for four tiles

// tw_exp for x <= 0 or NaN: the power of two goes straight into the exponent, which cannot overflow there.
inline __m512 exp_nonpositive(__m512 x) {
  __m512 r;
  const __m512i power = _mm512_slli_epi32(_mm512_cvttps_epi32(tw_exp_reduce_avx512(x, &r)), 23);
  const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(TW_EXP_LOW), _CMP_NLT_UQ);
  const __m512i p = _mm512_castps_si512(tw_exp_polynomial_avx512(r));
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(kept, p, power));
}

// What becomes of the scores of a tile, unless a kernel has weights of its own: exp(score - max), in float32.
struct ExactWeight {
  // Stores the weights of a row's tile, and returns the row's sum with those that it sees.
  static TW_INLINE __m512 add(RowBlock& block, int row, int in_chunk, __m512 score, float max,
                              __mmask16 visible, __m512 sum) {
    const __m512 p = exp_nonpositive(_mm512_sub_ps(score, _mm512_set1_ps(max)));
    _mm512_store_ps(block.weight[row] + in_chunk * TW_LANES, p);
    return _mm512_mask_add_ps(sum, visible, sum, p);
  }
};

// Returns the scores of the tile at place `tile`.
template <bool kCapped, bool kSloped>
TW_INLINE __m512 final_score(const tw_attention_args* a, const RowBlock& block, int row, int tile,
                             const float* dot) {
  __m512 score = _mm512_mul_ps(_mm512_load_ps(dot), _mm512_set1_ps(a->scale));
  if (kCapped) {
    const __m512 softcap = _mm512_set1_ps(a->softcap);
    score = _mm512_mul_ps(softcap, tw_tanh_avx512(_mm512_div_ps(score, softcap)));
  }
  if (!kSloped) return score;
  const __m512i ahead =
      _mm512_add_epi32(_mm512_set1_epi32(block.start[row] + block.number[tile] * TW_LANES),
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm512_fmadd_ps(_mm512_set1_ps(block.slope[row]), _mm512_cvtepi32_ps(ahead), score);
}

// Returns the largest element of each of four vectors.
inline __m128 four_maxima(const __m512 (&x)[kChunk]) {
  __m512 pair[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 a = x[2 * i], b = x[2 * i + 1];
    pair[i] = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  const __m512 low = _mm512_shuffle_ps(pair[0], pair[1], 0x44),
               high = _mm512_shuffle_ps(pair[0], pair[1], 0xee);
  const __m512 four = _mm512_max_ps(low, high);
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Does step 2 for one row and tiles [begin, end), at most a chunk. The operations are those of one tile after
// another, but the four maxima are found together. kPartial: the row does not see all of four tiles. A tile
// in which it sees nothing changes no bit.
template <typename Weight, bool kCapped, bool kSloped, bool kPartial>
inline void soften_chunk(const tw_attention_args* a, RowBlock& block, int row, int begin, int end) {
  __m512 score[kChunk];
  __mmask16 visible[kChunk];
  TW_UNROLL
  for (int i = 0; i < kChunk; ++i) {
    score[i] = final_score<kCapped, kSloped>(a, block, row, begin + i, block.weight[row] + i * TW_LANES);
    visible[i] = !kPartial ? 0xffff : begin + i < end ? block.visible[row][begin + i] : 0;
    if (kPartial) score[i] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), visible[i], score[i]);
  }
  const __m128 before = _mm_set1_ps(block.max[row]);
  // Element i becomes the maximum up to and including tile i.
  __m128 max = four_maxima(score);
  max =
      _mm_max_ps(max, _mm_castsi128_ps(_mm_alignr_epi8(_mm_castps_si128(max), _mm_castps_si128(before), 12)));
  max = _mm_max_ps(max, _mm_shuffle_ps(before, max, 0x40));
  max = _mm_max_ps(max, before);
  const __m128 previous =
      _mm_castsi128_ps(_mm_alignr_epi8(_mm_castps_si128(max), _mm_castps_si128(before), 12));
  const unsigned grown = _mm_movemask_ps(_mm_cmpneq_ps(max, previous));
  __m512 sum = _mm512_load_ps(block.sum[row]);
  __m128 rescale = _mm_set1_ps(1.0f);
  if (grown) {
    block.rescaled |= grown;
    const __m512 four = exp_nonpositive(_mm512_castps128_ps512(_mm_sub_ps(previous, max)));
    rescale = _mm_mask_mov_ps(rescale, (__mmask8)grown, _mm512_castps512_ps128(four));
  }
  _mm_storeu_ps(block.rescale[row], rescale);
  alignas(16) float max_of[kChunk];
  _mm_store_ps(max_of, max);
  if (a->tile_sum) {
    for (int i = 0; i < kChunk && begin + i < end; ++i) {
      if (!visible[i]) continue;
      const __m512 p = exp_nonpositive(_mm512_sub_ps(score[i], _mm512_set1_ps(max_of[i])));
      const int64_t at = noted_at(a, block, row, begin + i);
      a->tile_max[at] = max_of[i];
      a->tile_sum[at] = tw_tree_sum_avx512(_mm512_maskz_mov_ps(visible[i], p));
    }
  }
  TW_UNROLL
  for (int i = 0; i < kChunk; ++i) {
    if (grown) sum = _mm512_mul_ps(sum, _mm512_set1_ps(block.rescale[row][i]));
    sum = Weight::add(block, row, i, score[i], max_of[i], visible[i], sum);
  }
  _mm512_store_ps(block.sum[row], sum);
  block.max[row] = max_of[kChunk - 1];
}

template <typename Weight, bool kCapped, bool kSloped>
inline void soften_as(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  block.rescaled = 0;
  for (int r = 0; r < rows; ++r) {
    const uint16_t* visible = block.visible[r] + begin;
    if (end - begin == kChunk && (visible[0] & visible[1] & visible[2] & visible[3]) == 0xffff) {
      soften_chunk<Weight, kCapped, kSloped, false>(a, block, r, begin, end);
    } else {
      soften_chunk<Weight, kCapped, kSloped, true>(a, block, r, begin, end);
    }
  }
}

template <typename Weight>
inline void soften(const tw_attention_args* a, RowBlock& block, int rows, int begin, int end) {
  if (a->slopes) {
    a->softcap != 0 ? soften_as<Weight, true, true>(a, block, rows, begin, end)
                    : soften_as<Weight, false, true>(a, block, rows, begin, end);
  } else {
    a->softcap != 0 ? soften_as<Weight, true, false>(a, block, rows, begin, end)
                    : soften_as<Weight, false, false>(a, block, rows, begin, end);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_SOFTMAX_H_
