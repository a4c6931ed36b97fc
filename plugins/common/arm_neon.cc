// Loops that reach the read bandwidth, the fp32 peak and the int8 peak of NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/common/arm_pairs.h"
#include "plugins/common/ceilings.h"

extern "C" float tw_ceiling_read_neon(const void* data, size_t bytes) {
  const float* p = (const float*)data;
  float32x4_t sum[8];
  TW_UNROLL
  for (int j = 0; j < 8; ++j) sum[j] = vdupq_n_f32(0.0f);
  for (size_t i = 0; i < bytes / sizeof(float); i += 32) {
    TW_UNROLL
    for (int j = 0; j < 8; ++j) sum[j] = vaddq_f32(sum[j], vld1q_f32(p + i + 4 * j));
  }
  TW_UNROLL
  for (int j = 1; j < 8; ++j) sum[0] = vaddq_f32(sum[0], sum[j]);
  return vaddvq_f32(sum[0]);
}

extern "C" float tw_ceiling_fma_neon(int64_t iterations) {
  float32x4_t acc[16], a = vdupq_n_f32(0.999f), b = vdupq_n_f32(1e-3f);
  TW_UNROLL
  for (int i = 0; i < 16; ++i) acc[i] = vdupq_n_f32((float)i);
  for (int64_t n = 0; n < iterations; ++n) {
    TW_UNROLL
    for (int i = 0; i < 16; ++i) acc[i] = vfmaq_f32(acc[i], a, b);
    __asm__ volatile("" : "+w"(a), "+w"(b));  // keeps the compiler from hoisting the product
  }
  TW_UNROLL
  for (int i = 1; i < 16; ++i) acc[0] = vaddq_f32(acc[0], acc[i]);
  return vaddvq_f32(acc[0]);
}

extern "C" float tw_ceiling_int8_neon(int64_t iterations) {
  int32x4_t acc[8];
  int8x16_t a = vdupq_n_s8(1), b = a;
  TW_UNROLL
  for (int i = 0; i < 8; ++i) acc[i] = vdupq_n_s32(i);
  for (int64_t n = 0; n < iterations; ++n) {
    TW_UNROLL
    for (int i = 0; i < 8; ++i) {
      acc[i] = PairProducts::add(acc[i], a, b);
      __asm__ volatile("" : "+w"(a));  // keeps the compiler from computing the product only once
    }
  }
  TW_UNROLL
  for (int i = 1; i < 8; ++i) acc[0] = vaddq_s32(acc[0], acc[i]);
  return (float)vgetq_lane_s32(acc[0], 0);
}
