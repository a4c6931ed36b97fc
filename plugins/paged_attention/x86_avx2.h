// Attention on AVX2, shared by x86_avx2.cc and x86_avxvnni.cc: the Way of vector_values.h, and the scores of
// caches of floats.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/paged_attention/vector_values.h"

namespace {  // each including file gets its own copy, compiled with its own flags

inline __m256 load_i8(const char* v, int64_t count) {
  int64_t eight = 0;
  if (count >= 8) {
    memcpy(&eight, v, 8);
  } else {
    for (int64_t i = 0; i < count; ++i) eight |= (int64_t)(uint8_t)v[i] << 8 * i;
  }
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(eight)));
}

template <int kDtype>
TW_INLINE __m256 load_value(const char* v, int64_t count) {
  if (kDtype == TW_I8) return load_i8(v, count);
  return kDtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)v, count)
                           : tw_load_avx2((const float*)v, count);
}

// Splits the words of 8 positions into scales and offsets.
struct ScalesI4 {
  __m256 scale, offset;
  explicit ScalesI4(const char* words) {
    const __m256i word = _mm256_loadu_si256((const __m256i*)words);
    scale = _mm256_castsi256_ps(_mm256_and_si256(word, _mm256_set1_epi32((int)0xffff0000u)));
    offset = _mm256_castsi256_ps(_mm256_slli_epi32(word, 16));
  }
};

struct Avx2Way {
  using Set = Avx2;
  using Shift = __m128i;
  using Scales = ScalesI4;
  static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
  static constexpr int tiles(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  static TW_INLINE void fetch(const char* at) { _mm_prefetch(at, _MM_HINT_T1); }
  static TW_INLINE void fetch_near(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
  static TW_INLINE Shift shift_of(int column) { return _mm_cvtsi32_si128(column / 16 % 2 * 4); }

  // Rows of an int4 page are padded to runs of 32 columns.
  template <int kDtype, int W>
  static TW_INLINE __m256 load_column(const char* v, int w, int64_t count, Shift shift) {
    if (kDtype != TW_I4) return load_value<kDtype>(v + bytes_of<kDtype>(w * 8), W == 1 ? count : 8);
    const __m256i eight = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(v + w / 4 * 16 + w % 2 * 8)));
    const __m256i moved = W <= 2      ? _mm256_srl_epi32(eight, shift)
                          : w / 2 % 2 ? _mm256_srli_epi32(eight, 4)
                                      : eight;
    return _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15)));
  }

  template <int R, int W, typename Row, typename Value>
  static TW_INLINE void multiply(__m256 (&acc)[R][W], Row row, Value value) {
    tw_multiply_avx2(acc, row, value);
  }
  static TW_INLINE void add_product(__m256& acc, __m256 x, __m256 y) { tw_add_product_avx2(acc, x, y); }

  template <int kDtype, int R, int W>
  static void weigh(const RowBlock& block, const Weights& weight, const TilePointers& tiles, int begin,
                    int end, int v_dim, int column, float* out) {
    weigh_vectors<Avx2Way, kDtype, R, W>(block, weight, tiles, begin, end, v_dim, column, out);
  }
};

// Computes dot products of R rows of q, packed [head_dim][R], with N tiles of K.
template <int kStored>
struct Widened {
  using Way = Avx2Way;
  using Q = float;
  static constexpr int kDtype = kStored;
  static size_t packed_bytes(int head_dim) { return widened_q_bytes<kStored>(head_dim, kMaxRows); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_widened<kStored>(a, row, rows, to);
  }

  template <int R, int N>
  static void tiles(const char* const* tile, const char* const* ahead, const float* q, int head_dim,
                    float* out) {
    __m256 acc[R][2 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) acc[r][i] = _mm256_setzero_ps();
    }
    const char *k[N], *next[N];
    TW_UNROLL
    for (int n = 0; n < N; ++n) k[n] = tile[n], next[n] = ahead[n];
    const int64_t bytes = (int64_t)tw_panel_bytes(kDtype, (size_t)head_dim);
    for (int64_t at = 0; at < bytes; at += 64) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) _mm_prefetch(next[n] + at, _MM_HINT_T1);
      const auto row = [&](int r) TW_ALWAYS { return _mm256_broadcast_ss(q + r); };
      if (kDtype == TW_BF16) {
        tw_multiply_avx2(acc, row,
                         [&](int i) TW_ALWAYS { return tw_low_halves_avx2(k[i / 2] + at + i % 2 * 32); });
        q += R;
        tw_multiply_avx2(acc, row,
                         [&](int i) TW_ALWAYS { return tw_high_halves_avx2(k[i / 2] + at + i % 2 * 32); });
      } else {
        tw_multiply_avx2(acc, row, [&](int i) TW_ALWAYS {
          return _mm256_loadu_ps((const float*)(k[i / 2] + at) + i % 2 * 8);
        });
      }
      q += R;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2 * N; ++i) _mm256_store_ps(out + r * kChunk * TW_LANES + i * 8, acc[r][i]);
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX2_H_
