// Quantizes one head of one token to integers and a scale: to 8 bits when K and V are written, and to 15 bits
// when q is read; or, over an int4 cache, to 4 bits with an offset, and q to 12 bits. quantize.py is the
// definition. All instruction sets use this code, so the bits are the
// same.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_

#include <math.h>
#include <string.h>

#include "plugins/paged_attention/layout.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr float kKvLevels = 127.0f, kQueryLevels = 127.0f * 128.0f, kNarrowQueryLevels = 127.0f * 16.0f;

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

// Returns the sum of the integers of a group of q's dimensions.
template <typename T>
inline int32_t sum_of_group(const T* q, int head_dim, int group) {
  const int begin = group * TW_KV_GROUP, end = begin + (int)TW_KV_GROUP;
  int32_t sum = 0;
  for (int d = begin; d < end && d < head_dim; ++d) sum += q[d];
  return sum;
}

// The next two functions write one position of K, and of V, into a head's part of an int8 page.
inline void put_k_i8(char* page, int head_dim, int position, const float* k) {
  int8_t q[TW_MAX_INT_HEAD_DIM];
  const float scale = quantize_head(k, head_dim, kKvLevels, q);
  char* to = page + tw_kv_k_offset(TW_I8, head_dim, position, 0);
  for (int d = 0; d < head_dim; d += 4, to += 4 * TW_LANES) memcpy(to, q + d, 4);
  memcpy(page + tw_kv_k_scale_offset(TW_I8, head_dim, position, 0), &scale, sizeof scale);
}

inline void put_v_i8(char* page, int head_dim, int block_size, int position, const float* v) {
  int8_t q[TW_MAX_INT_HEAD_DIM];
  const float scale = quantize_head(v, head_dim, kKvLevels, q);
  memcpy(page + tw_kv_v_offset(TW_I8, head_dim, block_size, position, 0), q, (size_t)head_dim);
  memcpy(page + tw_kv_v_scale_offset(TW_I8, head_dim, block_size, position, 0), &scale, sizeof scale);
}

// Turns the bits of a float into an integer of the same order, and back. NaN lies beyond the infinities.
inline int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

struct GroupScale {
  float low, inverse;  // an integer is (x - low) * inverse, rounded; inverse 0 makes all integers zero
  uint32_t word;       // scale and offset
};

// Returns the word of a group, whose offset is not above the smallest element and whose scale reaches the
// largest with 15 steps: both are rounded away from zero where they must be. What is not finite, or too far
// apart, gives a word of two NaN.
inline GroupScale group_scale(const float* x, int count) {
  int32_t least = 0x7fffffff, most = -0x7fffffff - 1;
  for (int i = 0; i < count; ++i) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits = ordered(bits);
    least = bits < least ? bits : least;
    most = bits > most ? bits : most;
  }
  const float lowest = from_bits((uint32_t)ordered(least)) + 0.0f;  // never -0
  const float highest = from_bits((uint32_t)ordered(most));
  const uint32_t bits = to_bits(lowest);
  const uint32_t low = (bits >> 31 ? bits + 0xffffu : bits) & 0xffff0000u;
  const float span = highest - from_bits(low);
  if (!(highest - lowest <= 0x1.fffffep127f && span <= 0x1.fffffep127f)) return {0.0f, 0.0f, 0x7fc07fc0u};
  if (!(span >= 0x1p-110f)) return {from_bits(low), 0.0f, low >> 16};  // below that the inverse may overflow
  const uint32_t scale = (to_bits(span / 15.0f) + 0xffffu) & 0xffff0000u;
  return {from_bits(low), 1.0f / from_bits(scale), scale | low >> 16};
}

// Writes the integers of a group, 0 to 15, to q, and zeros from `count` up to `padded`. Returns the word.
inline uint32_t quantize_group(const float* x, int count, int padded, uint8_t* q) {
  const GroupScale s = group_scale(x, count);
  for (int i = 0; i < count; ++i) q[i] = (uint8_t)quantized(x[i] - s.low, s.inverse);
  if (s.inverse == 0.0f) memset(q, 0, (size_t)count);  // what is not finite has no integer
  memset(q + count, 0, (size_t)(padded - count));
  return s.word;
}

// The next two functions write one position of K, and of V, into a head's part of an int4 page.
inline void put_k_i4(char* page, int head_dim, int position, const float* k) {
  for (int group = 0; group * TW_KV_GROUP < head_dim; ++group) {
    const int left = head_dim - group * TW_KV_GROUP, dims = left < TW_KV_GROUP ? left : (int)TW_KV_GROUP;
    uint8_t q[TW_KV_GROUP];
    const uint32_t word = quantize_group(k + group * TW_KV_GROUP, dims, (dims + 7) / 8 * 8, q);
    char* to = page + tw_kv_k_offset(TW_I4, head_dim, position, group * TW_KV_GROUP);
    for (int d = 0; d < dims; d += 8, to += 4 * TW_LANES) {
      for (int i = 0; i < 4; ++i) to[i] = (char)(q[d + i] | q[d + 4 + i] << 4);
    }
    memcpy(page + tw_kv_k_scale_offset(TW_I4, head_dim, position, group), &word, sizeof word);
  }
}

inline void put_v_i4(char* page, int head_dim, int block_size, int position, const float* v) {
  for (int group = 0; group * TW_KV_GROUP < head_dim; ++group) {
    const int left = head_dim - group * TW_KV_GROUP, dims = left < TW_KV_GROUP ? left : (int)TW_KV_GROUP;
    uint8_t q[TW_KV_GROUP];
    const uint32_t word = quantize_group(v + group * TW_KV_GROUP, dims, (dims + 31) / 32 * 32, q);
    char* to = page + tw_kv_v_offset(TW_I4, head_dim, block_size, position, group * TW_KV_GROUP);
    for (int d = 0; d < dims; d += 32, to += 16) {
      for (int i = 0; i < 16; ++i) to[i] = (char)(q[d + i] | q[d + 16 + i] << 4);
    }
    memcpy(page + tw_kv_v_scale_offset(TW_I4, head_dim, block_size, position, group), &word, sizeof word);
  }
}

// Writes one position of K and V into a head's part of a page of integers.
inline void put_quantized(char* page, int dtype, int head_dim, int block_size, int position, const float* k,
                          const float* v) {
  if (dtype == TW_I4) {
    put_k_i4(page, head_dim, position, k);
    put_v_i4(page, head_dim, block_size, position, v);
  } else {
    put_k_i8(page, head_dim, position, k);
    put_v_i8(page, head_dim, block_size, position, v);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_QUANTIZE_H_
