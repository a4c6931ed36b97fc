// Attention on NEON, shared by arm_neon.cc and arm_neondot.cc: the Way of vector_values.h, and the scores of
// caches of floats.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_

#include "plugins/common/arm_neon.h"
#include "plugins/paged_attention/vector_values.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns 8 bytes, of which the first `count` are read; the others are zeros.
TW_INLINE uint8x8_t eight_bytes(const char* from, int64_t count) {
  if (count >= 8) return vld1_u8((const uint8_t*)from);
  uint8_t byte[8] = {0};
  for (int64_t i = 0; i < count; ++i) byte[i] = (uint8_t)from[i];
  return vld1_u8(byte);
}

// Returns signed bytes as floats.
TW_INLINE Eight floats_of(int8x8_t bytes) {
  const int16x8_t words = vmovl_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}

// Splits the words of 4 positions into scales and offsets.
struct ScalesI4 {
  float32x4_t scale, offset;
  explicit TW_INLINE ScalesI4(const char* words) : scale(second_halves(words)), offset(first_halves(words)) {}
};

struct NeonWay {
  using Set = Neon;
  using Shift = int8x8_t;  // to the left
  static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows <= 2 ? 4 : 2; }
  static constexpr int tiles(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
  static TW_INLINE void fetch(const char* at) { __builtin_prefetch(at); }
  static TW_INLINE void fetch_near(const char* at) { __builtin_prefetch(at); }
  static TW_INLINE Shift shift_of(int column) { return vdup_n_s8((int8_t)(column / 16 % 2 * -4)); }

  struct Scales {
    Eight scale, offset;
    explicit TW_INLINE Scales(const char* words) {
      const ScalesI4 low(words), high(words + 16);
      scale = {low.scale, high.scale};
      offset = {low.offset, high.offset};
    }
  };

  // Rows of an int4 page are padded to runs of 32 columns.
  template <int kDtype, int W>
  static TW_INLINE Eight load_column(const char* v, int w, int64_t count, Shift shift) {
    if constexpr (kDtype == TW_I4) {
      const uint8x8_t eight = vld1_u8((const uint8_t*)(v + w / 4 * 16 + w % 2 * 8));
      const uint8x8_t moved = W <= 2 ? vshl_u8(eight, shift) : w / 2 % 2 ? vshr_n_u8(eight, 4) : eight;
      return floats_of(vreinterpret_s8_u8(vand_u8(moved, vdup_n_u8(15))));
    } else {
      const char* from = v + bytes_of<kDtype>(w * 8);
      const int64_t left = W == 1 ? count : 8;
      if constexpr (kDtype == TW_I8) return floats_of(vreinterpret_s8_u8(eight_bytes(from, left)));
      if constexpr (kDtype != TW_I8) return load_eight_of(kDtype, from, 0, left);
    }
  }

  template <int R, int W, typename Row, typename Value>
  static TW_INLINE void multiply(Eight (&acc)[R][W], Row row, Value value) {
    Eight column[W];
    TW_UNROLL
    for (int w = 0; w < W; ++w) column[w] = value(w);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const Eight x = row(r);
      TW_UNROLL
      for (int w = 0; w < W; ++w) add_product(acc[r][w], x, column[w]);
    }
  }
  static TW_INLINE void add_product(Eight& acc, Eight x, Eight y) { acc = Neon::fma(x, y, acc); }

  // Inside its caller it would have too few registers.
  template <int kDtype, int R, int W>
  __attribute__((noinline)) static void weigh(const RowBlock& block, const Weights& weight,
                                              const TilePointers& tiles, int begin, int end, int v_dim,
                                              int column, float* out) {
    weigh_vectors<NeonWay, kDtype, R, W>(block, weight, tiles, begin, end, v_dim, column, out);
  }
};

// Computes dot products of R rows of q, packed [head_dim][R], with N tiles of K.
template <int kStored>
struct Widened {
  using Way = NeonWay;
  using Q = float;
  static constexpr int kDtype = kStored;
  static size_t packed_bytes(int head_dim) { return widened_q_bytes<kStored>(head_dim, kMaxRows); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_widened<kStored>(a, row, rows, to);
  }

  template <int R, int N>
  __attribute__((noinline)) static void tiles(const char* const* tile, const char* const* ahead,
                                              const float* q, int head_dim, float* out) {
    float32x4_t acc[R][4 * N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * N; ++i) acc[r][i] = vdupq_n_f32(0.0f);
    }
    const int64_t bytes = (int64_t)tw_panel_bytes(kDtype, (size_t)head_dim);
    for (int64_t at = 0; at < bytes; at += 64) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) __builtin_prefetch(ahead[n] + at);
      if constexpr (kDtype == TW_BF16) {
        add(acc, q, [&](int i) TW_ALWAYS { return first_halves(tile[i / 4] + at + i % 4 * 16); });
        q += R;
        __asm__("" : "+r"(q));  // makes the compiler load K again: no registers are free to keep it
        add(acc, q, [&](int i) TW_ALWAYS { return second_halves(tile[i / 4] + at + i % 4 * 16); });
      } else {
        add(acc, q, [&](int i) TW_ALWAYS { return vld1q_f32((const float*)(tile[i / 4] + at) + i % 4 * 4); });
      }
      q += R;
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 4 * N; ++i) vst1q_f32(out + r * kChunk * TW_LANES + i * 4, acc[r][i]);
    }
  }

 private:
  // Computes acc[r][i] += q[r] * k(i).
  template <int R, int N, class K>
  static TW_INLINE void add(float32x4_t (&acc)[R][N], const float* q, K k) {
    if constexpr (R == 1) {
      const float32x4_t row = vld1q_dup_f32(q);
      TW_UNROLL
      for (int i = 0; i < N; ++i) acc[0][i] = vfmaq_f32(acc[0][i], row, k(i));
    } else {
      float32x4_t value[N];
      TW_UNROLL
      for (int i = 0; i < N; ++i) value[i] = k(i);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const float32x4_t row = vld1q_dup_f32(q + r);
        TW_UNROLL
        for (int i = 0; i < N; ++i) acc[r][i] = vfmaq_f32(acc[r][i], row, value[i]);
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_ATTENTION_H_
