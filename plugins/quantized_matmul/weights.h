// The numbers of the range search of quantize.py: the scales that are tried, and the ranges of values.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_

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

constexpr Ladder<8> kInt4Ladder(0.04);
constexpr Ladder<3> kInt8Ladder(0.02);
constexpr Ladder<10> kWholeLadder(0.05);

// The format of weights that a search quantizes to.
struct SearchOf {
  bool nibbles, narrow;  // nibbles: weights have 4 bits; narrow: scales are bfloat16
  float low, high;       // range of the values
  const float* ladder;
  int steps;
};

inline SearchOf search_of(int dtype, int64_t group) {
  if (dtype == TW_I4) return {true, true, -8.0f, 7.0f, kInt4Ladder.step, 8};
  if (group == 0) return {false, false, -127.0f, 127.0f, kWholeLadder.step, 10};
  return {false, true, -127.0f, 127.0f, kInt8Ladder.step, 3};
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_WEIGHTS_H_
