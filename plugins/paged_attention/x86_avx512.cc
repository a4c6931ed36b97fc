// Attention on AVX-512: fp32 scores, bf16 scores by exact widening, int8 and int4 scores (all with
// the bits of scalar.cc), and the combine kernel.
#include <stdint.h>

#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/vector_combine.h"
#include "plugins/paged_attention/x86_avx512_i4.h"
#include "plugins/paged_attention/x86_avx512_i8.h"
#include "plugins/paged_attention/x86_latent_values.h"

namespace tensorwright {
namespace {

template <int kStored>
struct WidenedQ : PlainSteps<kStored> {
  using Q = float;
  static constexpr int kDtype = kStored;
  static size_t packed_bytes(int head_dim) { return widened_q_bytes<kDtype>(head_dim, kMaxRows); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_widened<kStored>(a, row, rows, to);
  }
};

struct ScoresF32 : WidenedQ<TW_F32> {
  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    __m512 acc[R][N];
    clear(acc);
    for (int d = 0; d < head_dim; ++d, q += R) {
      __m512 k[N];
      TW_UNROLL
      for (int n = 0; n < N; ++n) k[n] = _mm512_loadu_ps((const float*)tile[n] + d * TW_LANES);
      TW_UNROLL
      for (int n = 0; n < N; ++n) _mm_prefetch(ahead[n] + d * 64, _MM_HINT_T1);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 x = _mm512_set1_ps(q[r]);
        TW_UNROLL
        for (int n = 0; n < N; ++n) acc[r][n] = _mm512_fmadd_ps(x, k[n], acc[r][n]);
      }
    }
    store(acc, out);
  }
};

struct ScoresWidened : WidenedQ<TW_BF16> {
  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    __m512 acc[R][N];
    clear(acc);
    for (int pair = 0; pair < (head_dim + 1) / 2; ++pair, q += 2 * R) {
      __m512 even[N], odd[N];
      TW_UNROLL
      for (int n = 0; n < N; ++n) {
        const __m512i k = _mm512_loadu_si512((const uint32_t*)tile[n] + pair * TW_LANES);
        _mm_prefetch(ahead[n] + pair * 64, _MM_HINT_T1);
        even[n] = _mm512_castsi512_ps(_mm512_slli_epi32(k, 16));
        odd[n] = _mm512_castsi512_ps(_mm512_and_si512(k, high));
      }
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 x = _mm512_set1_ps(q[r]), y = _mm512_set1_ps(q[R + r]);
        TW_UNROLL
        for (int n = 0; n < N; ++n) {
          acc[r][n] = _mm512_fmadd_ps(y, odd[n], _mm512_fmadd_ps(x, even[n], acc[r][n]));
        }
      }
    }
    store(acc, out);
  }
};

struct AddPairs {
  static TW_INLINE __m512i add(__m512i acc, __m512i k, __m512i q) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(k, q));
  }
};

struct Eight {
  __m512i first, last;  // four integers each of 16 positions
  TW_INLINE explicit Eight(__m512i x)
      : first(_mm512_and_si512(x, _mm512_set1_epi8(15))),
        last(_mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15))) {}
  TW_INLINE __m512i add(__m512i acc, __m512i upper_first, __m512i lower_first, __m512i upper_last,
                        __m512i lower_last) const {
    // At most 4 * 15 * 127 in 16 bits.
    const __m512i upper =
        _mm512_add_epi16(_mm512_maddubs_epi16(first, upper_first), _mm512_maddubs_epi16(last, upper_last));
    const __m512i lower =
        _mm512_add_epi16(_mm512_maddubs_epi16(first, lower_first), _mm512_maddubs_epi16(last, lower_last));
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(upper, _mm512_set1_epi16(16)));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(lower, _mm512_set1_epi16(1)));
  }
};

constexpr int kFoldVectors = 4;

inline void fold_columns(const tw_attention_combine_args* a, int64_t row, int column) {
  __m512 acc[kFoldVectors];
  __mmask16 lanes[kFoldVectors];
  TW_UNROLL
  for (int w = 0; w < kFoldVectors; ++w) {
    lanes[w] = tw_lanes_avx512(a->v_dim - column - w * TW_LANES);
    acc[w] = _mm512_setzero_ps();
  }
  Fold fold;
  for (int64_t split = 0; split < a->splits; ++split) {
    const int64_t at = split * a->rows + row;
    if (Fold::nothing(a->max[at], a->sum[at])) continue;
    const float* from = a->acc + at * a->v_dim + column;
    float mine, other;
    const bool joined = fold.join(a->max[at], a->sum[at], &mine, &other);
    TW_UNROLL
    for (int w = 0; w < kFoldVectors; ++w) {
      const __m512 value = _mm512_maskz_loadu_ps(lanes[w], from + w * TW_LANES);
      acc[w] =
          joined ? _mm512_fmadd_ps(value, _mm512_set1_ps(other), _mm512_mul_ps(acc[w], _mm512_set1_ps(mine)))
                 : value;
    }
  }
  if (a->sinks) {
    const __m512 mine = _mm512_set1_ps(fold.sink(a->sinks[row]));
    TW_UNROLL
    for (int w = 0; w < kFoldVectors; ++w) acc[w] = _mm512_mul_ps(acc[w], mine);
  }
  TW_UNROLL
  for (int w = 0; w < kFoldVectors; ++w) {
    tw_store_avx512(a->y, a->y_dtype, a->y_offsets[row] + column + w * TW_LANES, lanes[w],
                    _mm512_div_ps(acc[w], _mm512_set1_ps(fold.sum)));
  }
}

}  // namespace

void attention_shares_avx512(const tw_attention_shares_args* a) { join_rows<Avx512>(a); }

void attention_f32_avx512(const tw_attention_args* a) { attend<Attention<ScoresF32>>(a); }
void attention_bf16_avx512(const tw_attention_args* a) { attend<Attention<ScoresWidened>>(a); }
void attention_i8_avx512(const tw_attention_args* a) { attend<Attention<ScoresI8<AddPairs>>>(a); }
void attention_i4_avx512(const tw_attention_args* a) { attend<Attention<ScoresI4<Eight>>>(a); }

void latent_values_avx512(const tw_latent_values_args* a) { turn_latent_values(a); }

void attention_combine_avx512(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int column = 0; column < a->v_dim; column += kFoldVectors * TW_LANES) fold_columns(a, row, column);
  }
}

}  // namespace tensorwright
