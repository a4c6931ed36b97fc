// Attention over caches of integers on NEON: the scores of int8 and int4 pages. q is split into an upper and
// a lower part of 8 bits each, so that products of bytes sum it exactly:
//   an integer is kBase times its upper part plus its lower part
// `Products` adds, in each of 4 lanes, the products of four signed bytes with four others to a sum.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_INTEGERS_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_INTEGERS_H_

#include "plugins/paged_attention/arm_attention.h"

namespace {

TW_INLINE int8x16_t word_of_q(const int32_t* q) { return vreinterpretq_s8_s32(vld1q_dup_s32(q)); }
TW_INLINE int8x16_t signed_bytes(const char* from) { return vld1q_s8((const int8_t*)from); }

// With an int8 cache, q of a row block is packed as the scales [rows], then for every four dimensions [rows]
// four bytes of the upper parts and [rows] of the lower parts. q is of 15 bits: 128 * 127 at most.
constexpr int32_t kBaseI8 = 128;

inline void pack_split(const tw_attention_args* a, int64_t row, int rows, int32_t* to) {
  float x[TW_MAX_INT_HEAD_DIM];
  int16_t q[TW_MAX_INT_HEAD_DIM];
  for (int r = 0; r < rows; ++r) {
    load_row_of_q(a, row + r, x);
    const float scale = quantize_head(x, a->head_dim, kQueryLevels, q);
    memcpy(to + r, &scale, sizeof scale);
    for (int d = 0; d < a->head_dim; d += 4) {
      uint32_t part[2] = {0, 0};
      for (int i = 0; i < 4; ++i) {
        const int upper = (q[d + i] + kBaseI8 / 2) >> 7;
        part[0] |= (uint32_t)(uint8_t)upper << 8 * i;
        part[1] |= (uint32_t)(uint8_t)(q[d + i] - kBaseI8 * upper) << 8 * i;
      }
      memcpy(to + (1 + d / 2) * rows + r, &part[0], 4);
      memcpy(to + (2 + d / 2) * rows + r, &part[1], 4);
    }
  }
}

// Returns kBase times the upper sum plus the lower sum, as floats.
template <int32_t kBase>
TW_INLINE float32x4_t joined(int32x4_t upper, int32x4_t lower) {
  return vcvtq_f32_s32(vmlaq_n_s32(lower, upper, kBase));
}

template <class Products>
struct ScoresI8 {
  using Way = NeonWay;
  using Q = int32_t;
  static constexpr int kDtype = TW_I8;
  static size_t packed_bytes(int head_dim) { return quantized_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) { pack_split(a, row, rows, to); }

  template <int R, int N>
  __attribute__((noinline)) static void tiles(const char* const* tile, const char* const* ahead, const Q* q,
                                              int head_dim, float* out) {
    const int64_t bytes = (int64_t)tw_panel_bytes(TW_I8, (size_t)head_dim);
    for (int n = 0; n < N; ++n) {
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(ahead[n] + at);
      for (int part = 0; part < 4; part += 2)
        add_positions<R>(tile[n], part, bytes, q, out + n * TW_LANES + part * 4);
    }
  }

 private:
  // Computes the scores of 8 positions, from 4 * part on.
  template <int R>
  static TW_INLINE void add_positions(const char* tile, int part, int64_t bytes, const Q* q, float* out) {
    const float* q_scale = (const float*)q;
    int32x4_t upper[R][2], lower[R][2];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2; ++i) upper[r][i] = lower[r][i] = vdupq_n_s32(0);
    }
    q += R;
    for (int64_t at = part * 16; at < bytes; at += 64, q += 2 * R) {
      const int8x16_t k[2] = {signed_bytes(tile + at), signed_bytes(tile + at + 16)};
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < 2; ++i) {
          upper[r][i] = Products::add(upper[r][i], k[i], word_of_q(q + r));
          lower[r][i] = Products::add(lower[r][i], k[i], word_of_q(q + R + r));
        }
      }
    }
    TW_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float32x4_t k_scale = vld1q_f32((const float*)(tile + bytes) + (part + i) * 4);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const float32x4_t dot = joined<kBaseI8>(upper[r][i], lower[r][i]);
        vst1q_f32(out + r * kChunk * TW_LANES + i * 4,
                  vmulq_f32(vmulq_f32(dot, vdupq_n_f32(q_scale[r])), k_scale));
      }
    }
  }
};

// q is packed by pack_narrow, whose base is 16.
constexpr int32_t kBaseI4 = 16;

template <class Products>
struct ScoresI4 {
  using Way = NeonWay;
  using Q = int32_t;
  static constexpr int kDtype = TW_I4;
  static size_t packed_bytes(int head_dim) { return narrow_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_narrow(a, row, rows, to);
  }

  template <int R, int N>
  __attribute__((noinline)) static void tiles(const char* const* tile, const char* const* ahead, const Q* q,
                                              int head_dim, float* out) {
    const float *q_scale = (const float*)q, *q_sum = q_scale + R;
    const int groups = tw_kv_scales(TW_I4, head_dim);
    q += R * (1 + groups);
    for (int group = 0; group < groups; ++group, q_sum += R) {
      const int64_t at = (int64_t)group * TW_KV_GROUP_BYTES;
      const int left = head_dim - group * TW_KV_GROUP;
      const int64_t bytes = (int64_t)tw_kv_panel_bytes(TW_I4, left < TW_KV_GROUP ? left : (int)TW_KV_GROUP);
      for (int n = 0; n < N; ++n) {
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead[n] + at + line);
        for (int part = 0; part < 4; part += 2)
          add_group<R>(tile[n] + at, part, bytes, q, q_scale, q_sum, group == 0,
                       out + n * TW_LANES + part * 4);
      }
      q += bytes / 64 * 4 * R;
    }
  }

 private:
  // Adds the products of 8 positions with a word of q.
  static TW_INLINE void add_word(int32x4_t (&sum)[2], const int8x16_t (&k)[2], const Q* word) {
    const int8x16_t x = word_of_q(word);
    TW_UNROLL
    for (int i = 0; i < 2; ++i) sum[i] = Products::add(sum[i], k[i], x);
  }

  // Adds a group's part of the scores of 8 positions, from 4 * part on.
  template <int R>
  static TW_INLINE void add_group(const char* tile, int part, int64_t bytes, const Q* q, const float* q_scale,
                                  const float* q_sum, bool first, float* out) {
    int32x4_t upper[R][2], lower[R][2];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int i = 0; i < 2; ++i) upper[r][i] = lower[r][i] = vdupq_n_s32(0);
    }
    for (int64_t at = part * 16; at < bytes; at += 64, q += 4 * R) {
      int8x16_t near[2], far[2];
      TW_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t pairs = vld1q_u8((const uint8_t*)(tile + at + i * 16));
        near[i] = vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(15)));
        far[i] = vreinterpretq_s8_u8(vshrq_n_u8(pairs, 4));
      }
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        add_word(upper[r], near, q + r);
        add_word(lower[r], near, q + R + r);
        add_word(upper[r], far, q + 2 * R + r);
        add_word(lower[r], far, q + 3 * R + r);
      }
    }
    TW_UNROLL
    for (int i = 0; i < 2; ++i) {
      const ScalesI4 k(tile + bytes + (part + i) * 16);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        float* to = out + r * kChunk * TW_LANES + i * 4;
        const float32x4_t before = first ? vdupq_n_f32(0.0f) : vld1q_f32(to);
        const float32x4_t dot = vmulq_f32(joined<kBaseI4>(upper[r][i], lower[r][i]), vdupq_n_f32(q_scale[r]));
        const float32x4_t scaled = vfmaq_f32(before, dot, k.scale);
        vst1q_f32(to, vfmaq_f32(scaled, vdupq_n_f32(q_sum[r]), k.offset));
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_ARM_INTEGERS_H_
