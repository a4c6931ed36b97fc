// latent_values: a tile of K becomes rows of V, by transposing 8 by 8 words of 4 bytes. AVX-512 has nothing
// better: the time goes into loads and stores.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_LATENT_VALUES_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_LATENT_VALUES_H_

#include <immintrin.h>
#include <string.h>

#include "plugins/common/vector.h"
#include "plugins/paged_attention/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Turns 8 words of 8 positions: from[word][TW_LANES positions] becomes to[position][stride words].
TW_INLINE void turn_words(const float* from, float* to, int64_t stride) {
  __m256 pair[8], four[8];
  TW_UNROLL
  for (int i = 0; i < 8; i += 2) {
    const __m256 a = _mm256_loadu_ps(from + i * TW_LANES), b = _mm256_loadu_ps(from + (i + 1) * TW_LANES);
    pair[i] = _mm256_unpacklo_ps(a, b);
    pair[i + 1] = _mm256_unpackhi_ps(a, b);
  }
  TW_UNROLL
  for (int i = 0; i < 8; i += 4) {
    TW_UNROLL
    for (int j = 0; j < 2; ++j) {
      four[i + 2 * j] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44);
      four[i + 2 * j + 1] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee);
    }
  }
  TW_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * stride, _mm256_permute2f128_ps(four[i], four[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * stride, _mm256_permute2f128_ps(four[i], four[i + 4], 0x31));
  }
}

inline void turn_latent_values(const tw_latent_values_args* a) {
  const auto* panel = (const float*)a->panel;
  auto* rows = (float*)a->rows;
  const int64_t words = a->words;
  int64_t w = 0;
  for (; w + 8 <= words; w += 8) {
    turn_words(panel + w * TW_LANES, rows + w, words);
    turn_words(panel + w * TW_LANES + 8, rows + 8 * words + w, words);
  }
  for (; w < words; ++w) {
    for (int64_t j = 0; j < TW_LANES; ++j) memcpy(rows + j * words + w, panel + w * TW_LANES + j, 4);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_LATENT_VALUES_H_
