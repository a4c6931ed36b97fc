// Attention on NEON: fp32, bf16 by exact widening, int8 and int4, with the bits of scalar.cc; the combine
// kernel; and rows of V out of K.
#include "plugins/common/arm_neon.h"

#include "plugins/common/arm_pairs.h"
#include "plugins/paged_attention/arm_integers.h"
#include "plugins/paged_attention/fold.h"

namespace tensorwright {
namespace {

// Folds the splits of 8 columns of a row. The first split of which the row sees something is taken as it is.
void fold_columns(const tw_attention_combine_args* a, int64_t row, int column) {
  const int64_t count = a->v_dim - column;
  Fold fold;
  Eight acc = Neon::all(0.0f);
  for (int64_t split = 0; split < a->splits; ++split) {
    const int64_t at = split * a->rows + row;
    if (Fold::nothing(a->max[at], a->sum[at])) continue;
    const Eight value = load_eight(a->acc + at * a->v_dim + column, count);
    float mine, other;
    const bool joined = fold.join(a->max[at], a->sum[at], &mine, &other);
    acc = joined ? Neon::fma(value, Neon::all(other), Neon::mul(acc, Neon::all(mine))) : value;
  }
  if (a->sinks) acc = Neon::mul(acc, Neon::all(fold.sink(a->sinks[row])));
  Neon::store(a->y, a->y_dtype, a->y_offsets[row] + column, count, Neon::div(acc, Neon::all(fold.sum)));
}

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

void attention_combine_neon(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int column = 0; column < a->v_dim; column += Neon::kLanes) fold_columns(a, row, column);
  }
}

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
