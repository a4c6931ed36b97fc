// Attention over an int8 cache with AVX512-VNNI: one instruction multiplies pairs and adds them up.
#include <stdint.h>

#include "plugins/paged_attention/x86_avx512_i8.h"

namespace tensorwright {
namespace {

struct AddPairs {
  static TW_INLINE __m512i add(__m512i acc, __m512i k, __m512i q) { return _mm512_dpwssd_epi32(acc, k, q); }
};

}  // namespace

void attention_i8_avx512vnni(const tw_attention_args* a) { attend<Attention<ScoresI8<AddPairs>>>(a); }

}  // namespace tensorwright
