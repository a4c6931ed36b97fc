// AVX-512 twins of bf16.h and exp.h, which give the same bits lane for lane, and masked loads and stores.
// Only x86_avx512*.cc files may include it.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_H_

// GCC 12 takes the deliberately undefined lanes inside its own intrinsics for mistakes (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <math.h>

#include "plugins/common/exp.h"
#include "plugins/common/kernel_types.h"
#include "plugins/common/vector.h"

// Returns the mask of the first `count` of 16 lanes: all lanes from 16 up, none from 0 down.
static inline __mmask16 tw_lanes_avx512(int64_t count) {
  return count >= 16 ? (__mmask16)0xffff : count <= 0 ? (__mmask16)0 : (__mmask16)((1u << count) - 1u);
}

static inline __m512 tw_bf16_to_f32_avx512(__m256i h) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline __m256i tw_f32_to_bf16_avx512(__m512 value) {
  __m512i bits = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static inline __m512 tw_exp2_integer_avx512(__m512i n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

// Returns 1 + r + r^2 * P(r) of exp.h.
static inline __m512 tw_exp_polynomial_avx512(__m512 r) {
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(TW_EXP_C6), r, _mm512_set1_ps(TW_EXP_C5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(TW_EXP_C2));
  return _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
}

// Returns n = rint(x * log2 e), and sets r to x - n * ln 2.
static inline __m512 tw_exp_reduce_avx512(__m512 x, __m512* r) {
  const __m512 round = _mm512_set1_ps(TW_EXP_ROUND);
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(TW_EXP_LOG2E), round), round);
  *r = _mm512_fnmadd_ps(n, _mm512_set1_ps(TW_EXP_LN2_HIGH), x);
  *r = _mm512_fnmadd_ps(n, _mm512_set1_ps(TW_EXP_LN2_LOW), *r);
  return n;
}

static inline __m512 tw_exp_avx512(__m512 x) {
  const __m512 low = _mm512_set1_ps(TW_EXP_LOW), high = _mm512_set1_ps(TW_EXP_HIGH);
  __m512 r;
  const __m512 n = tw_exp_reduce_avx512(_mm512_min_ps(_mm512_max_ps(x, low), high), &r);
  const __m512 p = tw_exp_polynomial_avx512(r);
  const __m512i whole = _mm512_cvttps_epi32(n), half = _mm512_srai_epi32(whole, 1);
  __m512 y = _mm512_mul_ps(p, tw_exp2_integer_avx512(half));
  y = _mm512_mul_ps(y, tw_exp2_integer_avx512(_mm512_sub_epi32(whole, half)));
  y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y);
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ), _mm512_set1_ps(INFINITY));
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

// Returns exp(x) for x of at most 0, or NaN. There 2^n is one factor, and no result is subnormal: adding n to
// the exponent multiplies.
static inline __m512 tw_exp_falling_avx512(__m512 x) {
  const __m512 low = _mm512_set1_ps(TW_EXP_LOW);
  __m512 r;
  const __m512 n = tw_exp_reduce_avx512(_mm512_max_ps(x, low), &r);
  const __m512i p = _mm512_castps_si512(tw_exp_polynomial_avx512(r));
  const __m512i y = _mm512_add_epi32(p, _mm512_slli_epi32(_mm512_cvttps_epi32(n), 23));
  const __m512 kept = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y));
  return _mm512_mask_mov_ps(kept, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

static inline __m512 tw_silu_avx512(__m512 x) {
  __m512 minus_x =
      _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN)));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), tw_exp_avx512(minus_x)));
}

// Stores the chosen lanes of `value` at element `at` of y, as float or rounded to bfloat16.
static inline void tw_store_avx512(void* y, int y_dtype, int64_t at, __mmask16 lanes, __m512 value) {
  if (y_dtype == TW_BF16) {
    _mm256_mask_storeu_epi16((uint16_t*)y + at, lanes, tw_f32_to_bf16_avx512(value));
  } else {
    _mm512_mask_storeu_ps((float*)y + at, lanes, value);
  }
}

// Returns the sum of 16 lanes: lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
static inline float tw_tree_sum_avx512(__m512 lanes) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

namespace {  // each including file gets its own copy, compiled with its own flags

// The instruction set for code that serves other sets as well: `Set` in the vector.h of the ops.
struct Avx512 {
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;

  static TW_INLINE Vector load(const float* x, int64_t count) {
    return count >= kLanes ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(tw_lanes_avx512(count), x);
  }
  static TW_INLINE void store(void* y, int y_dtype, int64_t at, int64_t count, Vector value) {
    tw_store_avx512(y, y_dtype, at, tw_lanes_avx512(count), value);
  }
  static TW_INLINE Vector all(float x) { return _mm512_set1_ps(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static TW_INLINE Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static TW_INLINE Vector sqrt(Vector a) { return _mm512_sqrt_ps(a); }
  static TW_INLINE Vector abs(Vector a) { return _mm512_abs_ps(a); }
  static TW_INLINE Vector negate(Vector a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static TW_INLINE Vector with_sign(Vector size, Vector of) {
    return _mm512_or_ps(_mm512_abs_ps(size), _mm512_and_ps(of, _mm512_set1_ps(-0.0f)));
  }
  static TW_INLINE Mask less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static TW_INLINE Mask at_most(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  static TW_INLINE Vector choose(Mask mask, Vector yes, Vector no) {
    return _mm512_mask_mov_ps(no, mask, yes);
  }
  // Returns the first `count` lanes, and zeros.
  static TW_INLINE Vector first(Vector a, int64_t count) {
    return _mm512_maskz_mov_ps(tw_lanes_avx512(count), a);
  }
  static TW_INLINE Vector exp(Vector a) { return tw_exp_avx512(a); }
  static TW_INLINE Vector exp_falling(Vector a) { return tw_exp_falling_avx512(a); }
  static TW_INLINE Vector silu(Vector a) { return tw_silu_avx512(a); }
  static TW_INLINE float tree_sum(const Vector (&lanes)[1]) { return tw_tree_sum_avx512(lanes[0]); }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AVX512_H_
