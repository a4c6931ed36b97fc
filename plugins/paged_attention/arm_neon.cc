// Attention on NEON: fp32, bf16 by exact widening, int8 and int4, with the bits of scalar.cc; what joins
// softmaxes; and rows of V out of K.
#include "plugins/common/arm_neon.h"

#include "plugins/common/arm_pairs.h"
#include "plugins/paged_attention/arm_integers.h"
#include "plugins/paged_attention/vector_combine.h"

namespace tensorwright {
namespace {

// Turns 4 words of 16 positions: from[word][16 positions] becomes to[position][stride words].
void turn_words(const float* from, float* to, int64_t stride) {
  for (int first = 0; first < TW_LANES; first += 4) {
    float32x4x4_t words;
    TW_UNROLL
    for (int i = 0; i < 4; ++i) words.val[i] = vld1q_f32(from + i * TW_LANES + first);
    float turned[16];
    vst4q_f32(turned, words);
    TW_UNROLL
    for (int i = 0; i < 4; ++i) vst1q_f32(to + (first + i) * stride, vld1q_f32(turned + 4 * i));
  }
}

}  // namespace

void attention_f32_neon(const tw_attention_args* a) { attend<Attention<Widened<TW_F32>>>(a); }
void attention_bf16_neon(const tw_attention_args* a) { attend<Attention<Widened<TW_BF16>>>(a); }
void attention_i8_neon(const tw_attention_args* a) { attend<Attention<ScoresI8<PairProducts>>>(a); }
void attention_i4_neon(const tw_attention_args* a) { attend<Attention<ScoresI4<PairProducts>>>(a); }

void attention_combine_neon(const tw_attention_combine_args* a) { fold_rows<Neon>(a); }
void attention_shares_neon(const tw_attention_shares_args* a) { join_rows<Neon>(a); }

void latent_values_neon(const tw_latent_values_args* a) {
  const auto* panel = (const float*)a->panel;
  auto* rows = (float*)a->rows;
  const int64_t words = a->words;
  int64_t w = 0;
  for (; w + 4 <= words; w += 4) turn_words(panel + w * TW_LANES, rows + w, words);
  for (; w < words; ++w) {
    for (int64_t j = 0; j < TW_LANES; ++j) memcpy(rows + j * words + w, panel + w * TW_LANES + j, 4);
  }
}

}  // namespace tensorwright
