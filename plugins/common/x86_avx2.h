// AVX2 twins of bf16.h and exp.h, which give the same bits lane for lane, and loads and stores of the first
// `count` of 8 lanes. Only x86_avx2.cc files may include it. Where AVX-512 has one register of 16 lanes, AVX2
// has two.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_H_

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "plugins/common/exp.h"
#include "plugins/common/kernel_types.h"
#include "plugins/common/vector.h"

enum { TW_LANES_AVX2 = 8 };

// Returns the mask of the first `count` of 8 lanes: all lanes from 8 up, none from 0 down.
static inline __m256i tw_lanes_avx2(int64_t count) {
  const int n = count >= 8 ? 8 : count <= 0 ? 0 : (int)count;
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Loads `count` lanes from x. The other lanes are zero, and nothing is read for them.
static inline __m256 tw_load_avx2(const float* x, int64_t count) {
  return count >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, tw_lanes_avx2(count));
}

static inline __m256 tw_bf16_to_f32_avx2(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline __m256 tw_load_bf16_avx2(const uint16_t* x, int64_t count) {
  if (count >= 8) return tw_bf16_to_f32_avx2(_mm_loadu_si128((const __m128i*)x));
  uint16_t element[8] = {0};
  for (int64_t i = 0; i < count; ++i) element[i] = x[i];
  return tw_bf16_to_f32_avx2(_mm_loadu_si128((const __m128i*)element));
}

static inline __m128i tw_f32_to_bf16_avx2(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

static inline __m256 tw_exp2_integer_avx2(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// Returns 1 + r + r^2 * P(r) of exp.h.
static inline __m256 tw_exp_polynomial_avx2(__m256 r) {
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(TW_EXP_C6), r, _mm256_set1_ps(TW_EXP_C5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TW_EXP_C4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TW_EXP_C3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(TW_EXP_C2));
  return _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
}

// Returns n = rint(x * log2 e), and sets r to x - n * ln 2.
static inline __m256 tw_exp_reduce_avx2(__m256 x, __m256* r) {
  const __m256 round = _mm256_set1_ps(TW_EXP_ROUND);
  const __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(TW_EXP_LOG2E), round), round);
  *r = _mm256_fnmadd_ps(n, _mm256_set1_ps(TW_EXP_LN2_HIGH), x);
  *r = _mm256_fnmadd_ps(n, _mm256_set1_ps(TW_EXP_LN2_LOW), *r);
  return n;
}

static inline __m256 tw_exp_avx2(__m256 x) {
  const __m256 low = _mm256_set1_ps(TW_EXP_LOW), high = _mm256_set1_ps(TW_EXP_HIGH);
  __m256 r;
  const __m256 n = tw_exp_reduce_avx2(_mm256_min_ps(_mm256_max_ps(x, low), high), &r);
  const __m256 p = tw_exp_polynomial_avx2(r);
  const __m256i whole = _mm256_cvttps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  __m256 y = _mm256_mul_ps(p, tw_exp2_integer_avx2(half));
  y = _mm256_mul_ps(y, tw_exp2_integer_avx2(_mm256_sub_epi32(whole, half)));
  y = _mm256_and_ps(y, _mm256_cmp_ps(x, low, _CMP_NLT_UQ));
  y = _mm256_blendv_ps(y, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// Returns exp(x) for x of at most 0, or NaN. There 2^n is one factor, and no result is subnormal: adding n to
// the exponent multiplies. What becomes of a number too low is not used: the result is 0. NaN stays NaN, for
// the integer of NaN has no bits that stay when it is moved to the exponent.
static inline __m256 tw_exp_falling_avx2(__m256 x) {
  __m256 r;
  const __m256i power = _mm256_slli_epi32(_mm256_cvttps_epi32(tw_exp_reduce_avx2(x, &r)), 23);
  const __m256 y =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(tw_exp_polynomial_avx2(r)), power));
  return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(TW_EXP_LOW), _CMP_NLT_UQ));
}

static inline __m256 tw_silu_avx2(__m256 x) {
  const __m256 minus_x = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), tw_exp_avx2(minus_x)));
}

// Stores `count` lanes of `value` at element `at` of y, as float or rounded to bfloat16.
static inline void tw_store_avx2(void* y, int y_dtype, int64_t at, int64_t count, __m256 value) {
  if (y_dtype == TW_BF16) {
    uint16_t* to = (uint16_t*)y + at;
    const __m128i rounded = tw_f32_to_bf16_avx2(value);
    if (count >= 8) {
      _mm_storeu_si128((__m128i*)to, rounded);
      return;
    }
    uint16_t element[8];
    _mm_storeu_si128((__m128i*)element, rounded);
    for (int64_t i = 0; i < count; ++i) to[i] = element[i];
  } else if (count >= 8) {
    _mm256_storeu_ps((float*)y + at, value);
  } else {
    _mm256_maskstore_ps((float*)y + at, tw_lanes_avx2(count), value);
  }
}

// Returns the sum of 16 lanes: lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
static inline float tw_tree_sum_avx2(__m256 low, __m256 high) {
  const __m256 h = _mm256_add_ps(low, high);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

// The next two functions return the first and the second bf16 of 8 pairs, widened.
static TW_INLINE __m256 tw_low_halves_avx2(const void* pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)pairs), 16));
}

static TW_INLINE __m256 tw_high_halves_avx2(const void* pairs) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i*)pairs), high));
}

// Computes acc += x * w in place. With the intrinsic, GCC may put the sum where x was, and run out of
// registers.
static TW_INLINE void tw_add_product_avx2(__m256& acc, __m256 x, __m256 w) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(x), "x"(w));
}

namespace {  // each including file gets its own copy, compiled with its own flags

// Computes acc[r][i] += x(r) * w(i). The more numerous of rows and vectors is read one at a time.
template <int R, int N, typename X, typename W>
TW_INLINE void tw_multiply_avx2(__m256 (&acc)[R][N], X x, W w) {
  if constexpr (N > R) {
    __m256 row[R];
    TW_UNROLL
    for (int r = 0; r < R; ++r) row[r] = x(r);
    TW_UNROLL
    for (int i = 0; i < N; ++i) {
      const __m256 value = w(i);
      TW_UNROLL
      for (int r = 0; r < R; ++r) tw_add_product_avx2(acc[r][i], row[r], value);
    }
  } else {
    __m256 value[N];
    TW_UNROLL
    for (int i = 0; i < N; ++i) value[i] = w(i);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 row = x(r);
      TW_UNROLL
      for (int i = 0; i < N; ++i) tw_add_product_avx2(acc[r][i], row, value[i]);
    }
  }
}

// The instruction set for code that serves other sets as well: `Set` in the vector.h of the ops.
struct Avx2 {
  using Vector = __m256;
  using Mask = __m256;
  static constexpr int kLanes = TW_LANES_AVX2;

  static TW_INLINE Vector load(const float* x, int64_t count) { return tw_load_avx2(x, count); }
  static TW_INLINE void store(void* y, int y_dtype, int64_t at, int64_t count, Vector value) {
    tw_store_avx2(y, y_dtype, at, count, value);
  }
  static TW_INLINE void put(float* y, Vector value) { _mm256_storeu_ps(y, value); }
  static TW_INLINE Vector all(float x) { return _mm256_set1_ps(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static TW_INLINE Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static TW_INLINE Vector sqrt(Vector a) { return _mm256_sqrt_ps(a); }
  static TW_INLINE Vector abs(Vector a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static TW_INLINE Vector negate(Vector a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static TW_INLINE Vector with_sign(Vector size, Vector of) {
    return _mm256_or_ps(abs(size), _mm256_and_ps(of, _mm256_set1_ps(-0.0f)));
  }
  static TW_INLINE Mask less(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static TW_INLINE Mask at_most(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  static TW_INLINE Vector choose(Mask mask, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, mask); }
  // Returns the first `count` lanes, and zeros.
  static TW_INLINE Vector first(Vector a, int64_t count) {
    return _mm256_and_ps(a, _mm256_castsi256_ps(tw_lanes_avx2(count)));
  }
  static TW_INLINE Vector exp(Vector a) { return tw_exp_avx2(a); }
  static TW_INLINE Vector exp_falling(Vector a) { return tw_exp_falling_avx2(a); }
  static TW_INLINE Vector silu(Vector a) { return tw_silu_avx2(a); }
  static TW_INLINE float tree_sum(const Vector (&lanes)[2]) { return tw_tree_sum_avx2(lanes[0], lanes[1]); }
  static TW_INLINE float first_lane(Vector a) { return _mm256_cvtss_f32(a); }
  // Returns the largest of 16 lanes; if one is NaN, any of them.
  static TW_INLINE float largest(const Vector (&lanes)[2]) {
    const Vector h = max(lanes[0], lanes[1]);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  // Returns the mask of the lanes whose bit is set.
  static TW_INLINE Mask lanes_of(unsigned bits) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit));
  }
  // Returns first, first + 1 and so on.
  static TW_INLINE Vector counted_from(int32_t first) {
    const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_set1_epi32(first), place));
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AVX2_H_
