// The definition's loops, in plain arithmetic of fixed lanes: each instruction set compiles this one source
// with its own flags, so the bits are the same.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_DEFINITION_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_DEFINITION_H_

#include <math.h>
#include <string.h>

#include "plugins/common/vector.h"
#include "plugins/logits/kernel.h"

#define TW_EXP64_LOG2E 0x1.71547652b82fep+0
#define TW_EXP64_LN2_HIGH 0x1.62e42fee00000p-1
#define TW_EXP64_LN2_LOW 0x1.a39ef35793c76p-33
#define TW_EXP64_ROUND 0x1.8p52  // adding it rounds to an integer, left in the low bits

// exp(x) for x <= 0 by Cody-Waite reduction and a Taylor polynomial; it vectorizes as it is.
static TW_INLINE double exp_negative(double x) {
  const double shifted = x * TW_EXP64_LOG2E + TW_EXP64_ROUND;
  const double n = shifted - TW_EXP64_ROUND;
  const double r = (x - n * TW_EXP64_LN2_HIGH) - n * TW_EXP64_LN2_LOW;
  double p = 1.0 / 6227020800.0;  // 1/13!
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  uint64_t bits, power, magnitude;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&power, &shifted, sizeof power);
  memcpy(&magnitude, &x, sizeof magnitude);
  bits += power << 52;
  // The result for x too far below 0, or -inf, is masked to 0. The mask is computed with integers, because a
  // comparison would keep the loops scalar.
  const uint64_t k700 = 0x4085e00000000000u;
  const uint64_t keep = ((k700 - (magnitude & ~((uint64_t)1 << 63))) >> 63) - 1;
  bits &= keep;
  memcpy(&p, &bits, sizeof p);
  return p;
}

// Adds the weights of the last `count` values, and returns the sum of the lanes, taken as a tree.
static double tw_finish_sum(double* lanes, const float* rest, int64_t count, double max) {
  for (int64_t j = 0; j < count; ++j) lanes[j] += exp_negative((double)rest[j] - max);
  for (int width = 4; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

static int32_t tw_count_greater(const float* x, int64_t count, float value) {
  int32_t greater = 0;
  for (int64_t i = 0; i < count; ++i) greater += x[i] > value;
  return greater;
}

static void tw_divide(const float* x, int64_t count, float divisor, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] / divisor;
}

// Each lane tests a bit of its own, because code without shifts by lane is fast on every instruction set.
static void tw_mask(const float* __restrict x, int64_t count, const uint32_t* words, float* __restrict out) {
  uint32_t bits[32];
  for (int j = 0; j < 32; ++j) bits[j] = (uint32_t)1 << j;
  for (int64_t i = 0; i < count; i += 32) {
    const uint32_t word = words[i / 32];
    if (count - i < 32) {
      for (int j = 0; i + j < count; ++j) out[i + j] = word & bits[j] ? x[i + j] : -INFINITY;
      break;
    }
    for (int j = 0; j < 32; ++j) out[i + j] = word & bits[j] ? x[i + j] : -INFINITY;
  }
}

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_DEFINITION_H_
