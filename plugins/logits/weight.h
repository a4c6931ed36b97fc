// The two estimates of 2^y, scalar form: n = rint(y), 2^y = 2^n * P(y - n).
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_WEIGHT_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_WEIGHT_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TW_WEIGHT_LOWEST -125.0f
// Adding and subtracting it rounds to the nearest integer, and leaves it in the low bits.
#define TW_WEIGHT_ROUND 12582912.0f
// Within 2^-22 of 2^f for |f| <= 1/2, rounding included.
#define TW_WEIGHT_C0 0x1.000002p+0f
#define TW_WEIGHT_C1 0x1.62e428p-1f
#define TW_WEIGHT_C2 0x1.ebf918p-3f
#define TW_WEIGHT_C3 0x1.c6b6e4p-5f
#define TW_WEIGHT_C4 0x1.3d0c54p-7f
#define TW_WEIGHT_C5 0x1.5c08e6p-10f

#define TW_WIDE_LOWEST -1000.0
#define TW_WIDE_ROUND 0x1.8p52
#define TW_WIDE_LOG2E 0x1.71547652b82fep+0
// Within 2^-34 of it.
#define TW_WIDE_C0 0x1.ffffffffabbd7p-1
#define TW_WIDE_C1 0x1.62e42ff116295p-1
#define TW_WIDE_C2 0x1.ebfbe0a4bed95p-3
#define TW_WIDE_C3 0x1.c6b08aaf2dc3bp-5
#define TW_WIDE_C4 0x1.3b29dc408d272p-7
#define TW_WIDE_C5 0x1.5d8a7088ab867p-10
#define TW_WIDE_C6 0x1.446a2015566aep-13
#define TW_WIDE_C7 0x1.fe17846c4339fp-17

// y at most 1.
static inline float tw_weight(float y) {
  y = y > TW_WEIGHT_LOWEST ? y : TW_WEIGHT_LOWEST;
  const float shifted = y + TW_WEIGHT_ROUND;
  const float f = y - (shifted - TW_WEIGHT_ROUND);
  float p = fmaf(TW_WEIGHT_C5, f, TW_WEIGHT_C4);
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
