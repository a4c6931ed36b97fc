// Attention on AVX2: fp32, bf16 by exact widening, int8 and int4, with the bits of scalar.cc; and what
// joins softmaxes.
#include <stdint.h>

#include "plugins/paged_attention/vector_combine.h"
#include "plugins/paged_attention/x86_avx2_i4.h"
#include "plugins/paged_attention/x86_avx2_i8.h"
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

}  // namespace

void attention_shares_avx2(const tw_attention_shares_args* a) { join_rows<Avx2>(a); }

void attention_f32_avx2(const tw_attention_args* a) { attend<Attention<Widened<TW_F32>>>(a); }
void attention_bf16_avx2(const tw_attention_args* a) { attend<Attention<Widened<TW_BF16>>>(a); }
void attention_i8_avx2(const tw_attention_args* a) { attend<Attention<ScoresI8>>(a); }
void attention_i4_avx2(const tw_attention_args* a) { attend<Attention<ScoresI4<Eight>>>(a); }

void latent_values_avx2(const tw_latent_values_args* a) { turn_latent_values(a); }

void attention_combine_avx2(const tw_attention_combine_args* a) { fold_rows<Avx2>(a); }

}  // namespace tensorwright
