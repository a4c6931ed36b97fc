// The estimates of 2^y, in scalar form. The two good ones use n = rint(y) and 2^y = 2^n * P(y - n).
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_WEIGHT_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_WEIGHT_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TW_LOG2E_HIGH 0x1.715476p+0f
#define TW_LOG2E_LOW 0x1.4ae0cp-26f
#define TW_LN2 0x1.62e43p-1f
#define TW_WEIGHT_LOWEST -125.0f
// Adding this number rounds to the nearest integer and leaves the integer in the low bits; subtracting it
// gives the integer as a float.
#define TW_WEIGHT_ROUND 12582912.0f
// This polynomial is within 2^-23 of 2^f for |f| <= 1/2, rounding included.
#define TW_WEIGHT_C0 1.0f
#define TW_WEIGHT_C1 0x1.62e43p-1f
#define TW_WEIGHT_C2 0x1.ebfbdcp-3f
#define TW_WEIGHT_C3 0x1.c6af72p-5f
#define TW_WEIGHT_C4 0x1.3b2ddcp-7f
#define TW_WEIGHT_C5 0x1.5f0f76p-10f
#define TW_WEIGHT_C6 0x1.417834p-13f

// A rough weight takes y, in fixed point, as the bits of a float: 2^n (1 + f) for 2^(n + f). This is up to
// 6.2 % too much, so the exponent starts lower by half of that.
#define TW_ROUGH_ONE 8388608.0f  // 2^23, of the exponent's lowest bit
#define TW_ROUGH_BIAS 126.957f
// A block's weights are rough if the block is more than this many powers of two below the largest value.
#define TW_ROUGH_FROM 16.0f

#define TW_WIDE_LOWEST -1000.0
#define TW_WIDE_ROUND 0x1.8p52
#define TW_WIDE_LOG2E 0x1.71547652b82fep+0
// This polynomial is within 2^-34 of 2^f.
#define TW_WIDE_C0 0x1.ffffffffabbd7p-1
#define TW_WIDE_C1 0x1.62e42ff116295p-1
#define TW_WIDE_C2 0x1.ebfbe0a4bed95p-3
#define TW_WIDE_C3 0x1.c6b08aaf2dc3bp-5
#define TW_WIDE_C4 0x1.3b29dc408d272p-7
#define TW_WIDE_C5 0x1.5d8a7088ab867p-10
#define TW_WIDE_C6 0x1.446a2015566aep-13
#define TW_WIDE_C7 0x1.fe17846c4339fp-17

// Returns the integer power of two by which weights of scores up to max are divided, so that 2^(max * log2 e
// - power) is near 1.
static inline float tw_weight_power(float max) {
  const float shifted = max * TW_LOG2E_HIGH + TW_WEIGHT_ROUND;
  return shifted - TW_WEIGHT_ROUND;
}

// Returns exp(score) / 2^power.
static inline float tw_weight(float score, float power) {
  const float lowest = (power + TW_WEIGHT_LOWEST) * TW_LN2, round = TW_WEIGHT_ROUND - power;
  score = score > lowest ? score : lowest;
  const float shifted = fmaf(score, TW_LOG2E_HIGH, round);
  const float f = fmaf(score, TW_LOG2E_LOW, fmaf(score, TW_LOG2E_HIGH, -(shifted - round)));
  float p = fmaf(TW_WEIGHT_C6, f, TW_WEIGHT_C5);
  p = fmaf(p, f, TW_WEIGHT_C4);
  p = fmaf(p, f, TW_WEIGHT_C3);
  p = fmaf(p, f, TW_WEIGHT_C2);
  p = fmaf(p, f, TW_WEIGHT_C1);
  p = fmaf(p, f, TW_WEIGHT_C0);
  uint32_t bits, whole;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&whole, &shifted, sizeof whole);
  bits += whole << 23;
  memcpy(&p, &bits, sizeof p);
  return p;
}

// Returns about 2^(x * scale - power), for an exponent of at most 1.
static inline float tw_rough_weight(float x, float scale, float power) {
  const float fixed = fmaf(x, scale * TW_ROUGH_ONE, (TW_ROUGH_BIAS - power) * TW_ROUGH_ONE);
  const int32_t bits = (int32_t)(fixed > 0.0f ? fixed : 0.0f);
  float weight;
  memcpy(&weight, &bits, sizeof weight);
  return weight;
}

static inline double tw_wide_weight(double y) {
  y = y > TW_WIDE_LOWEST ? y : TW_WIDE_LOWEST;
  const double shifted = y + TW_WIDE_ROUND;
  const double f = y - (shifted - TW_WIDE_ROUND);
  double p = fma(TW_WIDE_C7, f, TW_WIDE_C6);
  p = fma(p, f, TW_WIDE_C5);
  p = fma(p, f, TW_WIDE_C4);
  p = fma(p, f, TW_WIDE_C3);
  p = fma(p, f, TW_WIDE_C2);
  p = fma(p, f, TW_WIDE_C1);
  p = fma(p, f, TW_WIDE_C0);
  uint64_t bits, whole;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&whole, &shifted, sizeof whole);
  bits += whole << 52;
  memcpy(&p, &bits, sizeof p);
  return p;
}

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_WEIGHT_H_
