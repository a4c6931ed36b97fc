// The exponential of all CPU kernels, in scalar form. x86_avx2.h, x86_avx512.h and arm_neon.h have the vector
// twins, which give the same bits.
//
//   n = rint(x * log2 e),  r = x - n * ln 2 (in two parts),  exp(x) = 2^n * (1 + r + r^2 * P(r)),  P of
//   degree 4
//
// The function is monotone, with an error below 1 ulp. exp(0) is exactly 1, exp(x < -87.33) is exactly 0 (no
// result is subnormal, so FTZ does not matter), exp(x > 88.72) is infinity, and exp(NaN) is NaN.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_EXP_H_
#define TENSORWRIGHT_PLUGINS_COMMON_EXP_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TW_EXP_LOW -87.33654f
#define TW_EXP_HIGH 88.72283f
#define TW_EXP_LOG2E 0x1.715476p+0f
#define TW_EXP_LN2_HIGH 0x1.62e4p-1f
#define TW_EXP_LN2_LOW 0x1.7f7d1cp-20f
// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
#define TW_EXP_ROUND 12582912.0f
#define TW_EXP_C2 0x1.fffffcp-2f
#define TW_EXP_C3 0x1.555492p-3f
#define TW_EXP_C4 0x1.5558f2p-5f
#define TW_EXP_C5 0x1.123a2p-7f
#define TW_EXP_C6 0x1.6a23cep-10f

static inline float tw_exp2_integer(int32_t n) {
  uint32_t bits = (uint32_t)(n + 127) << 23;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float tw_exp(float x) {
  // With these comparisons a NaN becomes the bound, as in the vector min and max. The NaN is put back below.
  float c = x > TW_EXP_LOW ? x : TW_EXP_LOW;
  c = c < TW_EXP_HIGH ? c : TW_EXP_HIGH;
  float n = fmaf(c, TW_EXP_LOG2E, TW_EXP_ROUND) - TW_EXP_ROUND;
  float r = fmaf(-n, TW_EXP_LN2_HIGH, c);
  r = fmaf(-n, TW_EXP_LN2_LOW, r);
  float p = fmaf(TW_EXP_C6, r, TW_EXP_C5);
  p = fmaf(p, r, TW_EXP_C4);
  p = fmaf(p, r, TW_EXP_C3);
  p = fmaf(p, r, TW_EXP_C2);
  p = fmaf(p, r * r, r) + 1.0f;  // the last addition rounds once, which keeps the function monotone
  // 2^n is multiplied in as two factors, because 2^128 is not a float.
  int32_t whole = (int32_t)n, half = whole >> 1;
  float y = p * tw_exp2_integer(half) * tw_exp2_integer(whole - half);
  if (x < TW_EXP_LOW) y = 0.0f;
  if (x > TW_EXP_HIGH) y = INFINITY;
  return x == x ? y : x;
}

static inline float tw_silu(float x) { return x / (1.0f + tw_exp(-x)); }

#endif  // TENSORWRIGHT_PLUGINS_COMMON_EXP_H_
