// softplus(x) = log(1 + exp(x)) of all CPU kernels, in scalar form. vector_softplus.h has the vector twin,
// which gives the same bits.
//
//   softplus(x) = max(x, 0) + log1p(u),  u = exp(-|x|) <= 1
//   log1p(u)    = 2 artanh(s),  s = u / (2 + u) <= 1/3,  artanh(s) = s + s^3/3 + s^5/5 + ... + s^15/15
//
// The first term left out is below 2^-30 of the sum.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_SOFTPLUS_H_
#define TENSORWRIGHT_PLUGINS_COMMON_SOFTPLUS_H_

#include "plugins/common/exp.h"

static inline float tw_softplus(float x) {
  const float u = tw_exp(-fabsf(x));
  const float s = u / (2.0f + u), q = s * s;
  float p = fmaf(1.0f / 15.0f, q, 1.0f / 13.0f);
  p = fmaf(p, q, 1.0f / 11.0f);
  p = fmaf(p, q, 1.0f / 9.0f);
  p = fmaf(p, q, 1.0f / 7.0f);
  p = fmaf(p, q, 1.0f / 5.0f);
  p = fmaf(p, q, 1.0f / 3.0f);
  const float log1p = 2.0f * fmaf(s, p * q, s);
  // With this comparison a NaN stays one: its u is NaN.
  return (x > 0.0f ? x : 0.0f) + log1p;
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_SOFTPLUS_H_
