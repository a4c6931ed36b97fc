// A loop that reaches the peak of bf16 dot products.
#include "plugins/common/arm_neon.h"
#include "plugins/common/ceilings.h"

extern "C" float tw_ceiling_bf16_neonbf16(int64_t iterations) {
  float32x4_t acc[16];
  uint16x8_t ones = vdupq_n_u16(0x3f80);
  __asm__("" : "+w"(ones));  // GCC 12 loads a constant of bfloat16 by an instruction for float16
  bfloat16x8_t a = vreinterpretq_bf16_u16(ones), b = a;
  TW_UNROLL
  for (int i = 0; i < 16; ++i) acc[i] = vdupq_n_f32((float)i);
  for (int64_t n = 0; n < iterations; ++n) {
    TW_UNROLL
    for (int i = 0; i < 16; ++i) acc[i] = vbfdotq_f32(acc[i], a, b);
    __asm__ volatile("" : "+w"(a), "+w"(b));  // keeps the compiler from computing the products only once
  }
  TW_UNROLL
  for (int i = 1; i < 16; ++i) acc[0] = vaddq_f32(acc[0], acc[i]);
  return (float)vaddvq_f32(acc[0]);
}
