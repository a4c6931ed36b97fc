// float16 in plain C: exact widening, and narrowing by round-to-nearest-even. F16C, AVX-512 and NEON have
// instructions that give the same bits.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_F16_H_
#define TENSORWRIGHT_PLUGINS_COMMON_F16_H_

#include <stdint.h>
#include <string.h>

#define TW_F16_LARGEST 65504.0f

// Infinities and NaN do not occur.
static inline float tw_f16_to_f32(uint16_t h) {
  const uint32_t size = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
  // Below the least normal number, a number is a multiple of 2^-24.
  const float small = (float)size * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &small, sizeof bits);
  if (size >= 0x400u) bits = (size << 13) + (112u << 23);
  bits |= sign;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// The magnitude must be at most TW_F16_LARGEST.
static inline uint16_t tw_f32_to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (size >= 0x38800000u)
    return (uint16_t)(sign | (((size + 0xfffu + (size >> 13 & 1u)) >> 13) - (112u << 10)));
  float magnitude;
  memcpy(&magnitude, &size, sizeof magnitude);
  // Adding 0.5 leaves the multiple of 2^-24 in the last bits, rounded to nearest even.
  magnitude += 0.5f;
  memcpy(&bits, &magnitude, sizeof bits);
  return (uint16_t)(sign | (bits - 0x3f000000u));
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_F16_H_
