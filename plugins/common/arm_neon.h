// NEON twins of bf16.h and exp.h, which give the same bits lane for lane, and the instruction set `Neon` for
// the vector.h of the ops. Only arm_*.cc files may include it. Two of NEON's 32 registers of 128 bits take
// the place of one of AVX2's 16 of 256 bits, so a vector has 8 lanes here as there.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_ARM_NEON_H_
#define TENSORWRIGHT_PLUGINS_COMMON_ARM_NEON_H_

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "plugins/common/exp.h"
#include "plugins/common/kernel_types.h"
#include "plugins/common/vector.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// The next functions compute in one register of four lanes.

// Returns the larger, or b if one of them is NaN: `x > y ? x : y` of the scalar kernels. vmaxq_f32 would give
// the NaN.
TW_INLINE float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
TW_INLINE float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

TW_INLINE float32x4_t float_bits(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }
TW_INLINE uint32x4_t bits_of_floats(float32x4_t x) { return vreinterpretq_u32_f32(x); }

TW_INLINE float32x4_t widened_bf16(uint16x4_t half) { return float_bits(vshll_n_u16(half, 16)); }

TW_INLINE uint16x4_t narrowed_bf16(float32x4_t value) {
  const uint32x4_t bits = bits_of_floats(value), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(value, value), rounded, quiet), 16);
}

// The next two functions return the first and the second bf16 of 4 pairs, widened.
TW_INLINE float32x4_t first_halves(const void* pairs) {
  return float_bits(vshlq_n_u32(vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)pairs)), 16));
}
TW_INLINE float32x4_t second_halves(const void* pairs) {
  const uint32x4_t both = vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)pairs));
  return float_bits(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
}

TW_INLINE float32x4_t exp2_integer(int32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

// Returns 1 + r + r^2 * P(r) of exp.h.
TW_INLINE float32x4_t exp_polynomial(float32x4_t r) {
  float32x4_t p = vfmaq_f32(vdupq_n_f32(TW_EXP_C5), vdupq_n_f32(TW_EXP_C6), r);
  p = vfmaq_f32(vdupq_n_f32(TW_EXP_C4), p, r);
  p = vfmaq_f32(vdupq_n_f32(TW_EXP_C3), p, r);
  p = vfmaq_f32(vdupq_n_f32(TW_EXP_C2), p, r);
  return vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
}

// Returns n = rint(x * log2 e), and sets r to x - n * ln 2.
TW_INLINE float32x4_t exp_reduce(float32x4_t x, float32x4_t* r) {
  const float32x4_t round = vdupq_n_f32(TW_EXP_ROUND);
  const float32x4_t n = vsubq_f32(vfmaq_f32(round, x, vdupq_n_f32(TW_EXP_LOG2E)), round);
  *r = vfmsq_f32(x, n, vdupq_n_f32(TW_EXP_LN2_HIGH));
  *r = vfmsq_f32(*r, n, vdupq_n_f32(TW_EXP_LN2_LOW));
  return n;
}

// Returns `value` where x is not below the least argument whose exponential is not 0, else 0. NaN stays.
TW_INLINE float32x4_t zero_where_low(float32x4_t value, float32x4_t x) {
  const uint32x4_t below = vcltq_f32(x, vdupq_n_f32(TW_EXP_LOW));
  return float_bits(vbicq_u32(bits_of_floats(value), below));
}

TW_INLINE float32x4_t exp_of(float32x4_t x) {
  const float32x4_t low = vdupq_n_f32(TW_EXP_LOW), high = vdupq_n_f32(TW_EXP_HIGH);
  float32x4_t r;
  const float32x4_t n = exp_reduce(smaller(larger(x, low), high), &r);
  const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
  float32x4_t y = vmulq_f32(exp_polynomial(r), exp2_integer(half));
  y = vmulq_f32(y, exp2_integer(vsubq_s32(whole, half)));
  y = vbslq_f32(vcgtq_f32(x, high), vdupq_n_f32(INFINITY), zero_where_low(y, x));
  return vbslq_f32(vceqq_f32(x, x), y, x);
}

// Returns exp(x) for x of at most 0, or NaN. There 2^n is one factor, and no result is subnormal: adding n to
// the exponent multiplies. An integer of a number too low, or of NaN, means nothing, and is not used: the
// result is 0, or NaN.
TW_INLINE float32x4_t exp_of_falling(float32x4_t x) {
  float32x4_t r;
  const int32x4_t n = vcvtq_s32_f32(exp_reduce(x, &r));
  const int32x4_t y = vaddq_s32(vreinterpretq_s32_f32(exp_polynomial(r)), vshlq_n_s32(n, 23));
  return vbslq_f32(vceqq_f32(x, x), zero_where_low(vreinterpretq_f32_s32(y), x), x);
}

// Returns signed bytes, four of each of 4 rows, as the floats of element `j` of each row.
template <int j>
TW_INLINE float32x4_t byte_as_float(int32x4_t four) {
  if constexpr (j == 3) {
    return vcvtq_f32_s32(vshrq_n_s32(four, 24));
  } else {
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(four, 24 - 8 * j), 24));
  }
}

// Shifts bytes to the right, or to the left by a negative number; NEON has no shift by 0.
template <int kBy>
TW_INLINE uint8x16_t shifted(uint8x16_t bytes) {
  if constexpr (kBy == 0) return bytes;
  if constexpr (kBy > 0) return vshrq_n_u8(bytes, kBy);
  if constexpr (kBy < 0) return vshlq_n_u8(bytes, -kBy);
}

// Returns the byte of each of 4 rows, from row 4 * part of 16 on, four times: in the 4 bytes that the row has
// in a line of a panel.
TW_INLINE uint8x16_t of_four_rows(uint8x16_t of_rows, int part) {
  const uint8x16_t first = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  return vqtbl1q_u8(of_rows, vaddq_u8(first, vdupq_n_u8((uint8_t)(4 * part))));
}

// Lanes 0 to 3 and 4 to 7.
struct Eight {
  float32x4_t a, b;
};
struct EightBits {
  uint32x4_t a, b;
};

// Loads `count` lanes from x. The other lanes are zero, and nothing is read for them.
TW_INLINE Eight load_eight(const float* x, int64_t count) {
  if (count >= 8) return {vld1q_f32(x), vld1q_f32(x + 4)};
  float element[8] = {0};
  for (int64_t i = 0; i < count; ++i) element[i] = x[i];
  return {vld1q_f32(element), vld1q_f32(element + 4)};
}

TW_INLINE Eight load_eight_bf16(const uint16_t* x, int64_t count) {
  uint16_t element[8] = {0};
  for (int64_t i = 0; i < count && count < 8; ++i) element[i] = x[i];
  const uint16x8_t half = vld1q_u16(count >= 8 ? x : element);
  return {widened_bf16(vget_low_u16(half)), widened_bf16(vget_high_u16(half))};
}

TW_INLINE Eight load_eight_of(int dtype, const void* x, int64_t at, int64_t count) {
  return dtype == TW_BF16 ? load_eight_bf16((const uint16_t*)x + at, count)
                          : load_eight((const float*)x + at, count);
}

TW_INLINE void store_eight(float* y, Eight value) {
  vst1q_f32(y, value.a);
  vst1q_f32(y + 4, value.b);
}

// Returns the sum of 16 lanes: lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
TW_INLINE float sum_as_tree(Eight low, Eight high) {
  const float32x4_t four = vaddq_f32(vaddq_f32(low.a, high.a), vaddq_f32(low.b, high.b));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

struct Neon {
  using Vector = Eight;
  using Mask = EightBits;
  static constexpr int kLanes = 8;

  static TW_INLINE Vector load(const float* x, int64_t count) { return load_eight(x, count); }
  // Stores `count` lanes of `value` at element `at` of y, as float or rounded to bfloat16.
  static TW_INLINE void store(void* y, int y_dtype, int64_t at, int64_t count, Vector value) {
    if (y_dtype == TW_BF16) {
      uint16_t* to = (uint16_t*)y + at;
      const uint16x8_t rounded = vcombine_u16(narrowed_bf16(value.a), narrowed_bf16(value.b));
      if (count >= 8) return vst1q_u16(to, rounded);
      uint16_t element[8];
      vst1q_u16(element, rounded);
      for (int64_t i = 0; i < count; ++i) to[i] = element[i];
    } else {
      float* to = (float*)y + at;
      if (count >= 8) return store_eight(to, value);
      float element[8];
      store_eight(element, value);
      for (int64_t i = 0; i < count; ++i) to[i] = element[i];
    }
  }
  static TW_INLINE void put(float* y, Vector value) { store_eight(y, value); }
  static TW_INLINE Vector all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static TW_INLINE Vector add(Vector x, Vector y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
  static TW_INLINE Vector sub(Vector x, Vector y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
  static TW_INLINE Vector mul(Vector x, Vector y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
  static TW_INLINE Vector div(Vector x, Vector y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
  static TW_INLINE Vector fma(Vector x, Vector y, Vector z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
  }
  static TW_INLINE Vector max(Vector x, Vector y) { return {larger(x.a, y.a), larger(x.b, y.b)}; }
  static TW_INLINE Vector min(Vector x, Vector y) { return {smaller(x.a, y.a), smaller(x.b, y.b)}; }
  static TW_INLINE Vector sqrt(Vector x) { return {vsqrtq_f32(x.a), vsqrtq_f32(x.b)}; }
  static TW_INLINE Vector abs(Vector x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
  static TW_INLINE Vector negate(Vector x) { return {vnegq_f32(x.a), vnegq_f32(x.b)}; }
  static TW_INLINE Vector with_sign(Vector size, Vector of) {
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    return {vbslq_f32(sign, of.a, size.a), vbslq_f32(sign, of.b, size.b)};
  }
  static TW_INLINE Mask less(Vector x, Vector y) { return {vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b)}; }
  static TW_INLINE Mask at_most(Vector x, Vector y) { return {vcleq_f32(x.a, y.a), vcleq_f32(x.b, y.b)}; }
  static TW_INLINE Vector choose(Mask mask, Vector yes, Vector no) {
    return {vbslq_f32(mask.a, yes.a, no.a), vbslq_f32(mask.b, yes.b, no.b)};
  }
  // Returns the first `count` lanes, and zeros.
  static TW_INLINE Vector first(Vector x, int64_t count) {
    static const int32_t place[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32x4_t n = vdupq_n_s32(count >= 8 ? 8 : count <= 0 ? 0 : (int32_t)count);
    const Vector none = all(0.0f);
    return choose({vcgtq_s32(n, vld1q_s32(place)), vcgtq_s32(n, vld1q_s32(place + 4))}, x, none);
  }
  static TW_INLINE Vector exp(Vector x) { return {exp_of(x.a), exp_of(x.b)}; }
  static TW_INLINE Vector exp_falling(Vector x) { return {exp_of_falling(x.a), exp_of_falling(x.b)}; }
  static TW_INLINE Vector silu(Vector x) { return div(x, add(all(1.0f), exp(negate(x)))); }
  static TW_INLINE float tree_sum(const Vector (&lanes)[2]) { return sum_as_tree(lanes[0], lanes[1]); }
  static TW_INLINE float first_lane(Vector x) { return vgetq_lane_f32(x.a, 0); }
  // Returns the largest of 16 lanes; if one is NaN, any of them.
  static TW_INLINE float largest(const Vector (&lanes)[2]) {
    const Vector both = max(lanes[0], lanes[1]);
    const float32x4_t four = larger(both.a, both.b);
    const float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
  }
  // Returns the mask of the lanes whose bit is set.
  static TW_INLINE Mask lanes_of(unsigned bits) {
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128}, all = vdupq_n_u32(bits);
    return {vtstq_u32(all, low), vtstq_u32(all, high)};
  }
  // Returns first, first + 1 and so on.
  static TW_INLINE Vector counted_from(int32_t first) {
    const int32x4_t place = {0, 1, 2, 3}, count = vaddq_s32(vdupq_n_s32(first), place);
    return {vcvtq_f32_s32(count), vcvtq_f32_s32(vaddq_s32(count, vdupq_n_s32(4)))};
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_ARM_NEON_H_
