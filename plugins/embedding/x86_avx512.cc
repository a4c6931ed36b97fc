// embedding for AVX-512: gathers 16 groups of K of one lane of a panel at a time.
#include "plugins/common/x86_avx512.h"

#include "plugins/embedding/kernel.h"

namespace {

// Groups of one lane lie 64 bytes apart.
inline __m512i group_offsets(void) {
  return _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 6);
}

inline const char* row_of(const tw_embedding_args* a, int dtype, int64_t t) {
  const size_t panel = (size_t)(a->ids[t] / TW_LANES), lane = (size_t)(a->ids[t] % TW_LANES);
  return (const char*)a->table + panel * tw_panel_bytes(dtype, (size_t)a->width) + lane * 4;
}

}  // namespace

extern "C" void tw_embedding_f32_avx512(const tw_embedding_args* a) {
  const __m512i offsets = group_offsets();
  const __m512 scale = _mm512_set1_ps(a->scale);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* row = row_of(a, TW_F32, t);
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; c += 16) {
      const __mmask16 lanes = tw_lanes_avx512(a->width - c);
      __m512 v = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, offsets, row + c * 64, 1);
      _mm512_mask_storeu_ps(y + c, lanes, _mm512_mul_ps(v, scale));
    }
  }
}

extern "C" void tw_embedding_bf16_avx512(const tw_embedding_args* a) {
  const __m512i offsets = group_offsets();
  const __m512 scale = _mm512_set1_ps(a->scale);
  const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* row = row_of(a, TW_BF16, t);
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; c += 32) {
      const __mmask16 groups = tw_lanes_avx512((a->width - c + 1) / 2);
      __m512i pairs = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), groups, offsets, row + c * 32, 1);
      __m512i even = _mm512_slli_epi32(pairs, 16);
      __m512i odd = _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u));
      __m512 low = _mm512_castsi512_ps(_mm512_permutex2var_epi32(even, first, odd));
      __m512 high = _mm512_castsi512_ps(_mm512_permutex2var_epi32(even, second, odd));
      _mm512_mask_storeu_ps(y + c, tw_lanes_avx512(a->width - c), _mm512_mul_ps(low, scale));
      _mm512_mask_storeu_ps(y + c + 16, tw_lanes_avx512(a->width - c - 16), _mm512_mul_ps(high, scale));
    }
  }
}
