// Quantizes one head of one token to integers and a scale: to 8 bits when K and V are written, and to 15 bits
// when q is read. quantize.py is the definition. All instruction sets use this code, so the bits are the
// same.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_

#include <math.h>
#include <string.h>

#include "plugins/paged_attention/layout.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr float kKvLevels = 127.0f, kQueryLevels = 127.0f * 128.0f;

struct HeadScale {
  float inverse, scale;  // inverse 0 makes all integers zero
};

// Returns the scale of a head. Magnitudes are compared as integers, in which NaN is above infinity, so values
// that are not finite give a NaN scale.
inline HeadScale head_scale(const float* x, int count, float levels) {
  uint32_t most = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  if (most >= 0x7f800000u) return {0.0f, NAN};
  float largest;
  memcpy(&largest, &most, sizeof largest);
  if (!(largest >= 0x1p-110f)) return {0.0f, 0.0f};  // below that the inverse may overflow
  return {levels / largest, largest / levels};
}

// Rounds to nearest, ties to even, because the sum has no bits below 1.
inline int32_t quantized(float x, float inverse) {
  const float shifted = x * inverse + 0x1.8p23f;
  int32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - 0x4b400000;
}

// Writes the integers of x to q, and zeros from `count` up to a multiple of 4. Returns the scale.
template <typename T>
inline float quantize_head(const float* x, int count, float levels, T* q) {
  const HeadScale s = head_scale(x, count, levels);
  const int padded = (count + 3) / 4 * 4;
  if (s.inverse == 0.0f) {
    memset(q, 0, (size_t)padded * sizeof *q);
    return s.scale;
  }
  for (int i = 0; i < count; ++i) q[i] = (T)quantized(x[i], s.inverse);
  for (int i = count; i < padded; ++i) q[i] = 0;
  return s.scale;
}

// The next two functions write one position of K, and of V, into a head's part of an int8 page.
inline void put_k_i8(char* page, int head_dim, int position, const float* k) {
  int8_t q[TW_MAX_I8_HEAD_DIM];
  const float scale = quantize_head(k, head_dim, kKvLevels, q);
  char* to = page + tw_kv_k_offset(TW_I8, head_dim, position, 0);
  for (int d = 0; d < head_dim; d += 4, to += 4 * TW_LANES) memcpy(to, q + d, 4);
  memcpy(page + tw_kv_k_scale_offset(head_dim, position), &scale, sizeof scale);
}

inline void put_v_i8(char* page, int head_dim, int block_size, int position, const float* v) {
  int8_t q[TW_MAX_I8_HEAD_DIM];
  const float scale = quantize_head(v, head_dim, kKvLevels, q);
  memcpy(page + tw_kv_v_offset(TW_I8, head_dim, block_size, position, 0), q, (size_t)head_dim);
  memcpy(page + tw_kv_v_scale_offset(head_dim, block_size, position), &scale, sizeof scale);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_
