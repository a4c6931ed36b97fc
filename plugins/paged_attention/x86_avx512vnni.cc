// Attention over an int8 or int4 cache with AVX512-VNNI: one instruction multiplies pairs, or fours, and adds
// them up.
#include <stdint.h>

#include "plugins/paged_attention/x86_avx512_i4.h"
#include "plugins/paged_attention/x86_avx512_i8.h"

namespace tensorwright {
namespace {

struct AddPairs {
  static TW_INLINE __m512i add(__m512i acc, __m512i k, __m512i q) { return _mm512_dpwssd_epi32(acc, k, q); }
};

// The upper parts of q count 16 times, so they meet 16 times the integers of K, which fit a byte too.
struct Eight {
  __m512i first, first16, last, last16;  // four integers each of 16 positions
  TW_INLINE explicit Eight(__m512i x) {
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0);
    first = _mm512_and_si512(x, low);
    first16 = _mm512_and_si512(_mm512_slli_epi16(x, 4), high);
    last = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    last16 = _mm512_and_si512(x, high);
  }
  TW_INLINE __m512i add(__m512i acc, __m512i upper_first, __m512i lower_first, __m512i upper_last,
                        __m512i lower_last) const {
    acc = _mm512_dpbusd_epi32(acc, first16, upper_first);
    acc = _mm512_dpbusd_epi32(acc, first, lower_first);
    acc = _mm512_dpbusd_epi32(acc, last16, upper_last);
    return _mm512_dpbusd_epi32(acc, last, lower_last);
  }
};

}  // namespace

void attention_i8_avx512vnni(const tw_attention_args* a) { attend<Attention<ScoresI8<AddPairs>>>(a); }

void attention_i4_avx512vnni(const tw_attention_args* a) { attend<Attention<ScoresI4<Eight>>>(a); }

}  // namespace tensorwright
