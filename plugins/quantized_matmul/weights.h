// The numbers of the range search of quantize.py: the scales that are tried, and the ranges of values.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_

#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/common/f16.h"
#include "plugins/quantized_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr float kTiny = 0x1p-120f;  // smaller magnitudes count as zero, because their reciprocals overflow

template <int kSteps>
struct Ladder {
  float step[kSteps];
  explicit constexpr Ladder(double by) : step{} {
    for (int i = 0; i < kSteps; ++i) step[i] = (float)(1 - by * i);
  }
};

constexpr Ladder<8> kInt4Ladder(0.04);  // and for 3 bits
constexpr Ladder<14> kInt2Ladder(0.05);
constexpr Ladder<3> kInt8Ladder(0.02);
constexpr Ladder<10> kWholeLadder(0.05);
constexpr float kPowers[2] = {1.0f, 2.0f};  // of scales that are powers of two
constexpr float kOnce[1] = {1.0f};          // floats lose little by any one scale
constexpr float kLargestE4m3 = 448.0f;

// The format of weights that a search quantizes to.
struct SearchOf {
  int values;       // a tw_values
  int bits;         // of a weight
  int narrow;       // a tw_scales; -1: scales are float32 or powers of two, which need no rounding
  bool zeros;       // there are zero points; otherwise they count as 0
  float low, high;  // range of the values before zero points are subtracted
  const float* ladder;
  int steps;
};

inline SearchOf search_of(int dtype, int64_t group) {
  const tw_weight_codec c = tw_codec(dtype);
  const bool zeros = c.zeros != 0;
  if (c.values == TW_E2M1) return {c.values, c.bits, -1, false, -12.0f, 12.0f, kPowers, 2};
  if (c.values == TW_E4M3)
    return {c.values, c.bits, TW_SCALES_BF16, false, -kLargestE4m3, kLargestE4m3, kOnce, 1};
  if (group == 0) return {c.values, c.bits, -1, false, -127.0f, 127.0f, kWholeLadder.step, 10};
  const float levels = (float)(1 << c.bits);
  const float low = zeros         ? 0.0f
                    : c.bits == 8 ? -127.0f
                                  : -levels / 2,
              high = zeros ? levels - 1 : levels / 2 - 1;
  if (c.bits == 2) return {c.values, c.bits, c.scales, zeros, low, high, kInt2Ladder.step, 14};
  if (c.bits < 8) return {c.values, c.bits, c.scales, zeros, low, high, kInt4Ladder.step, 8};
  return {c.values, c.bits, c.scales, zeros, low, high, kInt8Ladder.step, 3};
}

// Returns the scale that stands for one which is too small.
inline float least_scale(int values) { return values == TW_E4M3 ? 1.0f : 0.0f; }

// The search of two_levels.py. kSteps: what the steps that are tried are less than the one that reaches the
// whole range of a group. kCentres: the codes to which the middle of the range is moved in turn.
constexpr float kCodes = 15.0f, kMostStep = TW_MOST_STEP;
constexpr float kSteps[3] = {0.0f, 1.0f, 2.0f};
constexpr float kCentres[5] = {7.0f, 7.25f, 7.5f, 7.75f, 8.0f};

// Writes the scales of the 16 rows of a group as layout.h stores them.
inline void write_scales(const float* scale, int dtype, int64_t group, char* to) {
  uint16_t halves[TW_LANES];
  uint8_t exponents[TW_LANES];
  for (int lane = 0; lane < TW_LANES; ++lane) {
    uint32_t bits;
    memcpy(&bits, scale + lane, sizeof bits);
    halves[lane] =
        tw_codec(dtype).scales == TW_SCALES_F16 ? tw_f32_to_f16(scale[lane]) : tw_f32_to_bf16(scale[lane]);
    exponents[lane] = (uint8_t)(bits >> 23);
  }
  if (group == 0 || tw_codec(dtype).scales == TW_SCALES_F32) {
    memcpy(to, scale, TW_LANES * sizeof *scale);
  } else if (tw_codec(dtype).scales == TW_SCALES_E8M0) {
    memcpy(to, exponents, sizeof exponents);
  } else {
    memcpy(to, halves, sizeof halves);
  }
}

// Writes the zero points of the 16 rows of group i of a panel, if the format has them. zero: in [0, 255].
inline void write_zeros(const float* zero, const tw_quantize_weights_args* a, int64_t i) {
  const tw_weight_codec c = tw_codec(a->dtype);
  if (c.zeros == 0) return;
  char* to = (char*)a->panel + tw_quantized_zero_offset(a->dtype, a->k, a->group, i);
  for (int lane = 0; lane < TW_LANES; ++lane) to[lane] = (char)((int)zero[lane] - (c.bits == 8 ? 128 : 0));
}

// Writes the steps and offsets of the 16 rows of group i of a panel. step: in [1, 16]. offset: in [-128,
// 112].
inline void write_steps(const float* step, const float* offset, const tw_quantize_weights_args* a,
                        int64_t i) {
  char* panel = (char*)a->panel;
  char* steps = panel + tw_quantized_scale_offset(a->dtype, a->k, a->group, i);
  char* offsets = panel + tw_quantized_zero_offset(a->dtype, a->k, a->group, i);
  for (int lane = 0; lane < TW_LANES; ++lane) {
    steps[lane] = (char)(int)step[lane];
    offsets[lane] = (char)((int)offset[lane] + 128);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_
