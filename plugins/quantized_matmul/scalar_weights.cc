// quantize_weights in plain C, which gives the bytes of quantize.py. Every other entry gives the same bytes.
#include <math.h>
#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/common/exp.h"
#include "plugins/quantized_matmul/weights.h"

namespace {

constexpr int kLanes = TW_LANES;

// The 16 rows of a group, side by side: [elements][16].
typedef float Lanes[kLanes];

struct GroupOf16 {
  const Lanes* x;
  int64_t size;
  SearchOf format;
};

void invert(const float* scale, float* inverse) {
  for (int lane = 0; lane < kLanes; ++lane) inverse[lane] = scale[lane] != 0 ? 1.0f / scale[lane] : 0.0f;
}

// Rounds to nearest even, by the rounding of float addition; values are far below 2^22.
float nearest(float value, float low, float high) {
  const float rounded = (value + TW_EXP_ROUND) - TW_EXP_ROUND;
  const float raised = rounded < low ? low : rounded;
  return raised > high ? high : raised;
}

void squared_error(const GroupOf16& g, const float* scale, float* error) {
  float inverse[kLanes], sum[kLanes] = {};
  invert(scale, inverse);
  const float low = g.format.low, high = g.format.high;
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float difference = g.x[k][lane] - nearest(g.x[k][lane] * inverse[lane], low, high) * scale[lane];
      sum[lane] += difference * difference;
    }
  }
  memcpy(error, sum, sizeof sum);
}

// Tries the scale top * t. Keeps the smaller error in `best`, and its scale in `scale`; the earlier scale on
// a tie.
void consider(const GroupOf16& g, const float* top, float t, float* best, float* scale) {
  float candidate[kLanes], error[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const float value = top[lane] * t;
    const float stored = g.format.narrow ? tw_bf16_to_f32(tw_f32_to_bf16(value)) : value;
    candidate[lane] = fabsf(stored) >= kTiny ? stored : 0.0f;
  }
  squared_error(g, candidate, error);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(error[lane] < best[lane])) continue;
    best[lane] = error[lane];
    scale[lane] = candidate[lane];
  }
}

// Finds the signed value of the largest magnitude of each lane; the first of equals.
void find_largest(const GroupOf16& g, float* largest) {
  float most[kLanes] = {};
  memset(largest, 0, sizeof most);
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float magnitude = fabsf(g.x[k][lane]);
      const bool more = magnitude > most[lane];
      largest[lane] = more ? g.x[k][lane] : largest[lane];
      most[lane] = more ? magnitude : most[lane];
    }
  }
}

// Finds the scales of a group by range search, and their error.
void search(const GroupOf16& g, float* scale, float* error) {
  float largest[kLanes], top[kLanes];
  find_largest(g, largest);
  for (int lane = 0; lane < kLanes; ++lane) {
    error[lane] = INFINITY;
    scale[lane] = 0.0f;
    top[lane] = g.format.nibbles ? largest[lane] / -8.0f : fabsf(largest[lane]) / 127.0f;
  }
  for (int i = 0; i < g.format.steps; ++i) consider(g, top, g.format.ladder[i], error, scale);
  if (!g.format.nibbles) return;
  for (int lane = 0; lane < kLanes; ++lane) top[lane] = fabsf(largest[lane]) / 7.0f;
  for (int i = 0; i < g.format.steps; ++i) consider(g, top, g.format.ladder[i], error, scale);
}

void write_scales(const float* scale, bool narrow, char* to) {
  if (!narrow) {
    memcpy(to, scale, sizeof(Lanes));
    return;
  }
  uint16_t bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = tw_f32_to_bf16(scale[lane]);
  memcpy(to, bits, sizeof bits);
}

void write_values(const GroupOf16& g, const float* scale, uint8_t* to) {
  float inverse[kLanes];
  invert(scale, inverse);
  for (int64_t k = 0; k < g.size; ++k) {
    uint8_t* line = to + (g.format.nibbles ? k / 8 : k / 4) * 64 + k % 4;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int value = (int)nearest(g.x[k][lane] * inverse[lane], g.format.low, g.format.high);
      uint8_t* byte = line + lane * 4;
      if (!g.format.nibbles) {
        *byte = (uint8_t)value;
      } else {
        *byte = (uint8_t)(k % 8 < 4 ? value + 8 : *byte | (value + 8) << 4);
      }
    }
  }
}

// Gathers columns [begin, begin + size) of the rows. Columns that do not exist are zeros.
void gather(const tw_quantize_weights_args* a, int64_t begin, int64_t size, Lanes* x) {
  memset(x, 0, (size_t)size * sizeof(Lanes));
  const int64_t end = begin + size < a->k ? begin + size : a->k;
  for (int64_t lane = 0; lane < a->rows; ++lane) {
    const int64_t at = lane * a->w_stride;
    for (int64_t k = begin; k < end; ++k) {
      x[k - begin][lane] = a->w_dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)a->w)[at + k])
                                                 : ((const float*)a->w)[at + k];
    }
  }
}

void measure(const GroupOf16& g, const float* error, const tw_quantize_weights_args* a) {
  float sum[kLanes] = {}, none = 0;  // none: stays 0 unless a value is infinite or NaN
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += g.x[k][lane] * g.x[k][lane];
      none += g.x[k][lane] * 0.0f;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    *a->weight += (double)sum[lane];
    *a->error += (double)error[lane];
  }
  if (none != 0.0f) *a->finite = 0;
}

}  // namespace

extern "C" void tw_quantize_weights_scalar(const tw_quantize_weights_args* a) {
  const int64_t size = tw_quantized_group(a->k, a->group), groups = tw_quantized_groups(a->k, a->group);
  Lanes* x = (Lanes*)a->x;
  const GroupOf16 g = {x, size, search_of(a->dtype, a->group)};
  char* panel = (char*)a->panel;
  for (int64_t i = 0; i < groups; ++i) {
    float scale[kLanes], error[kLanes];
    gather(a, i * size, size, x);
    search(g, scale, error);
    measure(g, error, a);
    write_scales(scale, g.format.narrow, panel + tw_quantized_scale_offset(a->dtype, a->k, a->group, i));
    write_values(g, scale, (uint8_t*)panel + tw_quantized_group_offset(a->dtype, a->k, a->group, i));
  }
}
