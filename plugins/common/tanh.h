// tanh, erf and the activations of gated layers, in scalar form; vector_tanh.h has the vector twins, which
// give the same bits.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_TANH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_TANH_H_

#include "plugins/common/exp.h"
#include "plugins/common/kernel_types.h"

// tanh: an odd polynomial near zero, where 1 - 2 / (exp(2x) + 1) would cancel. Relative error below 3e-7.
#define TW_TANH_NEAR 0.625f
#define TW_TANH_C3 -3.33332819422e-1f
#define TW_TANH_C5 1.33314422036e-1f
#define TW_TANH_C7 -5.37397155531e-2f
#define TW_TANH_C9 2.06390887954e-2f
#define TW_TANH_C11 -5.70498872745e-3f

static inline float tw_tanh(float x) {
  if (fabsf(x) < TW_TANH_NEAR) {
    const float z = x * x;
    float p = fmaf(TW_TANH_C11, z, TW_TANH_C9);
    p = fmaf(p, z, TW_TANH_C7);
    p = fmaf(p, z, TW_TANH_C5);
    p = fmaf(p, z, TW_TANH_C3);
    return fmaf(p * z, x, x);
  }
  return 1.0f - 2.0f / (tw_exp(x + x) + 1.0f);
}

// erf: a polynomial near zero, 1 - exp(polynomial) elsewhere. Relative error below 2e-7.
#define TW_ERF_NEAR 0.927734375f

static inline float tw_erf(float x) {
  const float t = fabsf(x), s = x * x;
  if (t <= TW_ERF_NEAR) {
    float r = fmaf(-5.96761703e-4f, s, 4.99119423e-3f);
    r = fmaf(r, s, -2.67681349e-2f);
    r = fmaf(r, s, 1.12819925e-1f);
    r = fmaf(r, s, -3.76125336e-1f);
    r = fmaf(r, s, 1.28379166e-1f);
    return fmaf(r, x, x);
  }
  float r = fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
  r = fmaf(r, s, u);
  r = fmaf(r, t, -1.06777877e-1f);
  r = fmaf(r, t, -6.34846687e-1f);
  r = fmaf(r, t, -1.28717512e-1f);
  r = fmaf(r, t, -t);
  return copysignf(1.0f - tw_exp(r), x);
}

static inline float tw_sigmoid(float x) { return 1.0f / (1.0f + tw_exp(-x)); }

#define TW_GELU_ROOT 0x1.988454p-1f  // sqrt(2 / pi)
#define TW_GELU_CUBE 0.044715f
#define TW_HALF_ROOT 0x1.6a09e6p-1f  // sqrt(1 / 2)

static inline float tw_gelu_tanh(float x) {
  const float inner = TW_GELU_ROOT * fmaf(TW_GELU_CUBE * (x * x), x, x);
  return (0.5f * x) * (1.0f + tw_tanh(inner));
}

static inline float tw_gelu_erf(float x) { return (0.5f * x) * (1.0f + tw_erf(x * TW_HALF_ROOT)); }

static inline float tw_activate(int activation, float x) {
  switch (activation) {
    case TW_SILU:
      return tw_silu(x);
    case TW_GELU_TANH:
      return tw_gelu_tanh(x);
    case TW_GELU_ERF:
      return tw_gelu_erf(x);
    case TW_RELU:
      return x > 0.0f ? x : 0.0f;
  }
  return x;  // no other number passes the plan's check
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_TANH_H_
