// embedding for AVX2: gathers 8 groups of K of one lane of a panel at a time.
#include "plugins/common/x86_avx2.h"

#include "plugins/embedding/kernel.h"

namespace {

// Groups of one lane lie 64 bytes apart.
inline __m256i group_offsets(void) { return _mm256_slli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), 6); }

inline const char* row_of(const tw_embedding_args* a, int dtype, int64_t t) {
  const size_t panel = (size_t)(a->ids[t] / TW_LANES), lane = (size_t)(a->ids[t] % TW_LANES);
  return (const char*)a->table + panel * tw_panel_bytes(dtype, (size_t)a->width) + lane * 4;
}

inline __m256i gather(const char* groups, int64_t count) {
  return _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), (const int*)groups, group_offsets(),
                                     tw_lanes_avx2(count), 1);
}

}  // namespace

extern "C" void tw_embedding_f32_avx2(const tw_embedding_args* a) {
  const __m256 scale = _mm256_set1_ps(a->scale);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* row = row_of(a, TW_F32, t);
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; c += 8) {
      const __m256 v = _mm256_castsi256_ps(gather(row + c * 64, a->width - c));
      tw_store_avx2(y, TW_F32, c, a->width - c, _mm256_mul_ps(v, scale));
    }
  }
}

extern "C" void tw_embedding_bf16_avx2(const tw_embedding_args* a) {
  const __m256 scale = _mm256_set1_ps(a->scale);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* row = row_of(a, TW_BF16, t);
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; c += 16) {
      const __m256i pairs = gather(row + c * 32, (a->width - c + 1) / 2);
      const __m256i even = _mm256_slli_epi32(pairs, 16);
      const __m256i odd = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u));
      // a0 has elements 0-3 and 8-11, a1 has elements 4-7 and 12-15.
      const __m256 a0 = _mm256_castsi256_ps(_mm256_unpacklo_epi32(even, odd));
      const __m256 a1 = _mm256_castsi256_ps(_mm256_unpackhi_epi32(even, odd));
      const __m256 low = _mm256_permute2f128_ps(a0, a1, 0x20), high = _mm256_permute2f128_ps(a0, a1, 0x31);
      tw_store_avx2(y, TW_F32, c, a->width - c, _mm256_mul_ps(low, scale));
      tw_store_avx2(y, TW_F32, c + 8, a->width - c - 8, _mm256_mul_ps(high, scale));
    }
  }
}
