// Attention over a bf16 cache with AVX512-BF16 dot instructions: scores take two dimensions per step.
#include <stdint.h>

#include "plugins/paged_attention/x86_avx512.h"

namespace tensorwright {
namespace {

struct ScoresDot {
  using Q = uint32_t;  // a pair of bf16
  static constexpr int kDtype = TW_BF16;
  static size_t packed_bytes(int head_dim) { return (size_t)((head_dim + 1) / 2) * kMaxRows * sizeof(Q); }

  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    for (int r = 0; r < rows; ++r) {
      const int64_t query = (row + r) / a->group, head = (row + r) % a->group;
      const uint16_t* q = (const uint16_t*)a->q + query * a->q_stride + head * a->head_dim;
      for (int pair = 0; pair < a->head_dim / 2; ++pair)
        memcpy(to + pair * rows + r, q + 2 * pair, sizeof(Q));
      // The last element of an odd head_dim is paired with a zero, as in K.
      if (a->head_dim % 2) to[a->head_dim / 2 * rows + r] = q[a->head_dim - 1];
    }
  }

  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    __m512 acc[R][N];
    clear(acc);
    for (int pair = 0; pair < (head_dim + 1) / 2; ++pair, q += R) {
      __m512i k[N];
      TW_UNROLL
      for (int n = 0; n < N; ++n) k[n] = _mm512_loadu_si512((const uint32_t*)tile[n] + pair * TW_LANES);
      TW_UNROLL
      for (int n = 0; n < N; ++n) _mm_prefetch(ahead[n] + pair * 64, _MM_HINT_T1);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32((int)q[r]);
        TW_UNROLL
        for (int n = 0; n < N; ++n) acc[r][n] = _mm512_dpbf16_ps(acc[r][n], x, (__m512bh)k[n]);
      }
    }
    store(acc, out);
  }
};

}  // namespace

void attention_bf16_avx512bf16(const tw_attention_args* a) { attend<Attention<ScoresDot>>(a); }

}  // namespace tensorwright
