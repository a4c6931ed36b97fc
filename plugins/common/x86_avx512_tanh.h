// AVX-512 twins of tanh.h, lane for lane the same bits. Included only by x86_avx512*.cc files.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_

#include "plugins/common/tanh.h"
#include "plugins/common/x86_avx512.h"

static inline __m512 tw_tanh_avx512(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(TW_TANH_C11), z, _mm512_set1_ps(TW_TANH_C9));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C7));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C5));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TW_TANH_C3));
  const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
  const __m512 denominator = _mm512_add_ps(tw_exp_avx512(_mm512_add_ps(x, x)), one);
  const __m512 far = _mm512_sub_ps(one, _mm512_div_ps(two, denominator));
  const __mmask16 is_near = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(TW_TANH_NEAR), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(far, is_near, near);
}

static inline __m512 tw_negate_avx512(__m512 x) {
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN)));
}

static inline __m512 tw_erf_avx512(__m512 x) {
  const __m512 t = _mm512_abs_ps(x), s = _mm512_mul_ps(x, x);
  __m512 near = _mm512_fmadd_ps(_mm512_set1_ps(-5.96761703e-4f), s, _mm512_set1_ps(4.99119423e-3f));
  near = _mm512_fmadd_ps(near, s, _mm512_set1_ps(-2.67681349e-2f));
  near = _mm512_fmadd_ps(near, s, _mm512_set1_ps(1.12819925e-1f));
  near = _mm512_fmadd_ps(near, s, _mm512_set1_ps(-3.76125336e-1f));
  near = _mm512_fmadd_ps(near, s, _mm512_set1_ps(1.28379166e-1f));
  near = _mm512_fmadd_ps(near, x, x);
  __m512 r = _mm512_fmadd_ps(_mm512_set1_ps(-1.72853470e-5f), t, _mm512_set1_ps(3.83197126e-4f));
  const __m512 u = _mm512_fmadd_ps(_mm512_set1_ps(-3.88396438e-3f), t, _mm512_set1_ps(2.42546219e-2f));
  r = _mm512_fmadd_ps(r, s, u);
  r = _mm512_fmadd_ps(r, t, _mm512_set1_ps(-1.06777877e-1f));
  r = _mm512_fmadd_ps(r, t, _mm512_set1_ps(-6.34846687e-1f));
  r = _mm512_fmadd_ps(r, t, _mm512_set1_ps(-1.28717512e-1f));
  r = _mm512_fmadd_ps(r, t, tw_negate_avx512(t));
  const __m512 magnitude = _mm512_sub_ps(_mm512_set1_ps(1.0f), tw_exp_avx512(r));
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(magnitude), _mm512_set1_epi32(INT32_MAX));
  const __m512 far = _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
  return _mm512_mask_mov_ps(far, _mm512_cmp_ps_mask(t, _mm512_set1_ps(TW_ERF_NEAR), _CMP_LE_OQ), near);
}

static inline __m512 tw_sigmoid_avx512(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(one, _mm512_add_ps(one, tw_exp_avx512(tw_negate_avx512(x))));
}

static inline __m512 tw_half_gate_avx512(__m512 x, __m512 gate) {
  return _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(0.5f), x), _mm512_add_ps(_mm512_set1_ps(1.0f), gate));
}

static inline __m512 tw_gelu_tanh_avx512(__m512 x) {
  const __m512 cube = _mm512_mul_ps(_mm512_set1_ps(TW_GELU_CUBE), _mm512_mul_ps(x, x));
  const __m512 inner = _mm512_mul_ps(_mm512_set1_ps(TW_GELU_ROOT), _mm512_fmadd_ps(cube, x, x));
  return tw_half_gate_avx512(x, tw_tanh_avx512(inner));
}

static inline __m512 tw_gelu_erf_avx512(__m512 x) {
  return tw_half_gate_avx512(x, tw_erf_avx512(_mm512_mul_ps(x, _mm512_set1_ps(TW_HALF_ROOT))));
}

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_TANH_H_
