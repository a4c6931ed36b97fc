// Attention over an int4 cache with AVX-VNNI: one instruction multiplies fours and adds them up.
#include <stdint.h>

#include "plugins/paged_attention/x86_avx2_i4.h"

namespace tensorwright {
namespace {

// The upper parts of q count 16 times, so they meet 16 times the integers of K, which fit a byte too.
struct Eight {
  __m256i first, first16, last, last16;  // four integers each of 8 positions
  TW_INLINE explicit Eight(__m256i x) {
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8((char)0xf0);
    first = _mm256_and_si256(x, low);
    first16 = _mm256_and_si256(_mm256_slli_epi16(x, 4), high);
    last = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    last16 = _mm256_and_si256(x, high);
  }
  TW_INLINE __m256i add(__m256i acc, __m256i upper_first, __m256i lower_first, __m256i upper_last,
                        __m256i lower_last) const {
    acc = _mm256_dpbusd_avx_epi32(acc, first16, upper_first);
    acc = _mm256_dpbusd_avx_epi32(acc, first, lower_first);
    acc = _mm256_dpbusd_avx_epi32(acc, last16, upper_last);
    return _mm256_dpbusd_avx_epi32(acc, last, lower_last);
  }
};

}  // namespace

void attention_i4_avxvnni(const tw_attention_args* a) { attend<Attention<ScoresI4<Eight>>>(a); }

}  // namespace tensorwright
