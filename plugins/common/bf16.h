// bfloat16 in plain C: exact widening, and narrowing by round-to-nearest-even. The vector twins are in
// x86_avx2.h, x86_avx512.h and arm_neon.h.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_BF16_H_
#define TENSORWRIGHT_PLUGINS_COMMON_BF16_H_

#include <stdint.h>
#include <string.h>

static inline float tw_bf16_to_f32(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// NaN stays NaN (made quiet), overflow becomes infinity, and subnormals are kept in every FTZ mode.
static inline uint16_t tw_f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_BF16_H_
