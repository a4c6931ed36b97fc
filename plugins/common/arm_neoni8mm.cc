// A loop that reaches the peak of products of int8 matrices.
#include "plugins/common/arm_neon.h"
#include "plugins/common/ceilings.h"

extern "C" float tw_ceiling_int8_neoni8mm(int64_t iterations) {
  int32x4_t acc[16];
  int8x16_t a = vdupq_n_s8(1), b = a;
  TW_UNROLL
  for (int i = 0; i < 16; ++i) acc[i] = vdupq_n_s32(i);
  for (int64_t n = 0; n < iterations; ++n) {
    TW_UNROLL
    for (int i = 0; i < 16; ++i) acc[i] = vmmlaq_s32(acc[i], a, b);
    __asm__ volatile("" : "+w"(a), "+w"(b));  // keeps the compiler from computing the products only once
  }
  TW_UNROLL
  for (int i = 1; i < 16; ++i) acc[0] = vaddq_s32(acc[0], acc[i]);
  return (float)vaddvq_s32(acc[0]);
}
