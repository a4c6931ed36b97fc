// Attention on AVX2: fp32, bf16 by exact widening, int8 and int4, with the bits of scalar.cc; and the combine
// kernel.
#include <stdint.h>

#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/x86_avx2_i4.h"
#include "plugins/paged_attention/x86_latent_values.h"

namespace tensorwright {
namespace {

struct Eight {
  __m256i first, last;  // four integers each of 8 positions
  TW_INLINE explicit Eight(__m256i x)
      : first(_mm256_and_si256(x, _mm256_set1_epi8(15))),
        last(_mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15))) {}
  TW_INLINE __m256i add(__m256i acc, __m256i upper_first, __m256i lower_first, __m256i upper_last,
                        __m256i lower_last) const {
    // At most 4 * 15 * 127 in 16 bits.
    const __m256i upper =
        _mm256_add_epi16(_mm256_maddubs_epi16(first, upper_first), _mm256_maddubs_epi16(last, upper_last));
    const __m256i lower =
        _mm256_add_epi16(_mm256_maddubs_epi16(first, lower_first), _mm256_maddubs_epi16(last, lower_last));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(upper, _mm256_set1_epi16(16)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(lower, _mm256_set1_epi16(1)));
  }
};

// Folds 8 columns of one row over the splits in ascending order. The first split of which the row sees
// something is taken as it is.
void fold_columns(const tw_attention_combine_args* a, int64_t row, int column) {
  const int64_t count = a->v_dim - column;
  Fold fold;
  __m256 acc = _mm256_setzero_ps();
  for (int64_t split = 0; split < a->splits; ++split) {
    const int64_t at = split * a->rows + row;
    if (Fold::nothing(a->max[at], a->sum[at])) continue;
    const __m256 value = tw_load_avx2(a->acc + at * a->v_dim + column, count);
    float mine, other;
    const bool joined = fold.join(a->max[at], a->sum[at], &mine, &other);
    acc = joined ? _mm256_fmadd_ps(value, _mm256_set1_ps(other), _mm256_mul_ps(acc, _mm256_set1_ps(mine)))
                 : value;
  }
  if (a->sinks) acc = _mm256_mul_ps(acc, _mm256_set1_ps(fold.sink(a->sinks[row])));
  tw_store_avx2(a->y, a->y_dtype, a->y_offsets[row] + column, count,
                _mm256_div_ps(acc, _mm256_set1_ps(fold.sum)));
}

// Joins the softmaxes of 8 rows, or of the rows that are left.
void join_rows(const tw_attention_shares_args* a, int row) {
  const int64_t count = a->rows - row;
  __m256 top = _mm256_set1_ps(-INFINITY), total = _mm256_setzero_ps();
  for (int64_t at = row; at < a->tiles * a->stride; at += a->stride)
    top = _mm256_max_ps(top, tw_load_avx2(a->max + at, count));
  for (int64_t at = row; at < a->tiles * a->stride; at += a->stride) {
    const __m256 weight = tw_exp_avx2(_mm256_sub_ps(tw_load_avx2(a->max + at, count), top));
    const __m256 share = _mm256_mul_ps(tw_load_avx2(a->sum + at, count), weight);
    tw_store_avx2(a->sum, TW_F32, at, count, share);
    total = _mm256_add_ps(total, share);
  }
  tw_store_avx2(a->total, TW_F32, row, count, total);
}

}  // namespace

void attention_shares_avx2(const tw_attention_shares_args* a) {
  for (int row = 0; row < a->rows; row += TW_LANES_AVX2) join_rows(a, row);
}

void attention_f32_avx2(const tw_attention_args* a) { attend<Attention<Widened<TW_F32>>>(a); }
void attention_bf16_avx2(const tw_attention_args* a) { attend<Attention<Widened<TW_BF16>>>(a); }
void attention_i8_avx2(const tw_attention_args* a) { attend<Attention<ScoresI8>>(a); }
void attention_i4_avx2(const tw_attention_args* a) { attend<Attention<ScoresI4<Eight>>>(a); }

void latent_values_avx2(const tw_latent_values_args* a) { turn_latent_values(a); }

void attention_combine_avx2(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int column = 0; column < a->v_dim; column += TW_LANES_AVX2) fold_columns(a, row, column);
  }
}

}  // namespace tensorwright
