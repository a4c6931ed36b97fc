// Attention over an int4 cache on AVX2: the scores. Bytes of q, signed, meet
// integers of K, unsigned, so a lane's sum is exact in any order.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I4_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I4_H_

#include "plugins/paged_attention/x86_avx2.h"

namespace {

// Eight::Eight(x) takes eight integers of K of 8 positions, and add(acc, upper, lower, upper, lower) returns
// acc plus their products with q, whose words pack_narrow made.
template <typename Eight>
struct ScoresI4 {
  using Way = Avx2Way;
  using Q = int32_t;
  static constexpr int kDtype = TW_I4;
  static size_t packed_bytes(int head_dim) { return narrow_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_narrow(a, row, rows, to);
  }

  template <int R, int N>
  static void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim, float* out) {
    const float *q_scale = (const float*)q, *q_sum = q_scale + R;
    const int groups = tw_kv_scales(TW_I4, head_dim);
    q += R * (1 + groups);
    for (int group = 0; group < groups; ++group, q_sum += R) {
      const int64_t at = (int64_t)group * TW_KV_GROUP_BYTES;
      const int left = head_dim - group * TW_KV_GROUP;
      const int64_t bytes = (int64_t)tw_kv_panel_bytes(TW_I4, left < TW_KV_GROUP ? left : (int)TW_KV_GROUP);
      add_group<R, N>(tile, ahead, at, bytes, q, q_scale, q_sum, group == 0, out);
      q += bytes / 64 * 4 * R;
    }
  }

 private:
  template <int R, int N>
  static TW_INLINE void add_group(const char* const* tile, const char* const* ahead, int64_t at,
                                  int64_t bytes, const Q* q, const float* q_scale, const float* q_sum,
                                  bool first, float* out) {
    __m256i acc[R][2 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) acc[r][i] = _mm256_setzero_si256();
    }
    for (const int64_t end = at + bytes; at < end; at += 64, q += 4 * R) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) {
        if (i % 2 == 0) _mm_prefetch(ahead[i / 2] + at, _MM_HINT_T1);
        const Eight k(_mm256_loadu_si256((const __m256i*)(tile[i / 2] + at + i % 2 * 32)));
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const auto word = [&](int w) TW_ALWAYS { return _mm256_set1_epi32(q[w * R + r]); };
          acc[r][i] = k.add(acc[r][i], word(0), word(1), word(2), word(3));
        }
      }
    }
    TW_UNROLL
    for (int i = 0; i < 2 * N; ++i) {
      const ScalesI4 k(tile[i / 2] + at + i % 2 * 32);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        float* to = out + r * kChunk * TW_LANES + i * 8;
        const __m256 before = first ? _mm256_setzero_ps() : _mm256_load_ps(to);
        const __m256 dot = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][i]), _mm256_set1_ps(q_scale[r]));
        const __m256 scaled = _mm256_fmadd_ps(dot, k.scale, before);
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_set1_ps(q_sum[r]), k.offset, scaled));
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_I4_H_
