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
float whole(float value) { return (value + TW_EXP_ROUND) - TW_EXP_ROUND; }

// Returns the step of doubled E2M1 numbers at a magnitude of at most 12, as the inverse.
float inverse_step(float magnitude) { return magnitude < 4.0f ? 1.0f : magnitude < 8.0f ? 0.5f : 0.25f; }

// Returns the power of two at or below a magnitude.
float power_below(float magnitude) {
  uint32_t bits;
  memcpy(&bits, &magnitude, sizeof bits);
  bits &= 0x7f800000u;
  memcpy(&magnitude, &bits, sizeof bits);
  return magnitude;
}

// Rounds to the nearest number of E4M3, ties to even, by the rounding of float addition: the last bit of a
// sum with 3 * 2^22 steps is a step, which is an eighth of the power below, and 2^-9 at least.
float nearest_e4m3(float value) {
  const float power = power_below(fabsf(value)), size = power < 0x1p-6f ? 0x1p-6f : power;
  const float round = size * 0x1.8p20f;
  return copysignf((fabsf(value) + round) - round, value);
}

// Returns the code of a number of E4M3.
int code_of_e4m3(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const float size = fabsf(value);
  const int code = size < 0x1p-6f ? (int)(size * 512.0f) : (int)((bits & 0x7fffffffu) >> 20) - (120 << 3);
  return code | (int)(bits >> 24 & 0x80u);
}

// Returns a weight over its scale.
float scaled(float value, float scale, float inverse, const SearchOf& format) {
  return format.values == TW_E4M3 ? value / scale : value * inverse;
}

// Returns the nearest value of the format less the zero point, ties to even.
float nearest(float value, const SearchOf& format, float zero) {
  if (format.values == TW_E4M3) return nearest_e4m3(value);
  const float low = format.low - zero, high = format.high - zero;
  const float raised = value < low ? low : value;
  const float kept = raised > high ? high : raised;
  if (format.values != TW_E2M1) return whole(kept);
  const float inverse = inverse_step(fabsf(kept));
  return whole(kept * inverse) / inverse;
}

// Returns the bits that stand for a value less the zero point.
int code_of(float value, const SearchOf& format, float zero) {
  if (format.values == TW_E4M3) return code_of_e4m3(value);
  if (format.values == TW_BYTES) return (uint8_t)((int)value + (format.zeros ? (int)zero - 128 : 0));
  if (format.values == TW_CODES) return (int)value + (int)(format.zeros ? zero : -format.low);
  const int magnitude = (int)fabsf(value);
  const int code = magnitude <= 4 ? magnitude : magnitude <= 8 ? magnitude / 2 + 2 : magnitude / 4 + 4;
  return value < 0 ? code + 8 : code;
}

void squared_error(const GroupOf16& g, const float* zero, const float* scale, float* error) {
  float inverse[kLanes], sum[kLanes] = {};
  invert(scale, inverse);
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float over = scaled(g.x[k][lane], scale[lane], inverse[lane], g.format);
      const float difference = g.x[k][lane] - nearest(over, g.format, zero[lane]) * scale[lane];
      sum[lane] += difference * difference;
    }
  }
  memcpy(error, sum, sizeof sum);
}

// Rounds a scale as it will be stored. Those of float16 stop at its largest number.
float narrowed(float scale, const SearchOf& format) {
  if (format.narrow == TW_SCALES_BF16) return tw_bf16_to_f32(tw_f32_to_bf16(scale));
  if (format.narrow != TW_SCALES_F16) return scale;
  const float kept = scale < -TW_F16_LARGEST ? -TW_F16_LARGEST : scale;
  return tw_f16_to_f32(tw_f32_to_f16(kept > TW_F16_LARGEST ? TW_F16_LARGEST : kept));
}

// What a search has found so far: the zero points, which it does not change, the scales and their errors.
struct Found {
  float zero[kLanes], scale[kLanes], error[kLanes];
};

// Tries the scale top * t. Keeps the smaller error, and its scale; the earlier scale on a tie.
void consider(const GroupOf16& g, const float* top, float t, Found* found) {
  float candidate[kLanes], error[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const float stored = narrowed(top[lane] * t, g.format);
    candidate[lane] = fabsf(stored) >= kTiny ? stored : least_scale(g.format.values);
  }
  squared_error(g, found->zero, candidate, error);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(error[lane] < found->error[lane])) continue;
    found->error[lane] = error[lane];
    found->scale[lane] = candidate[lane];
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

// Finds the zero points, and the scales to which the range of values is stretched, 0 included.
void find_range(const GroupOf16& g, float* zero, float* top) {
  for (int lane = 0; lane < kLanes; ++lane) {
    float low = 0.0f, high = 0.0f;
    for (int64_t k = 0; k < g.size; ++k) {
      low = g.x[k][lane] < low ? g.x[k][lane] : low;
      high = g.x[k][lane] > high ? g.x[k][lane] : high;
    }
    top[lane] = high / g.format.high - low / g.format.high;
    const float inverse = top[lane] >= kTiny ? 1.0f / top[lane] : 0.0f;
    const float nearest = whole(-low * inverse);
    zero[lane] = nearest > g.format.high ? g.format.high : nearest;
  }
}

// Finds the scales of a group by range search.
void search(const GroupOf16& g, Found* found) {
  float largest[kLanes], top[kLanes];
  find_largest(g, largest);
  for (int lane = 0; lane < kLanes; ++lane) {
    found->error[lane] = INFINITY;
    found->scale[lane] = found->zero[lane] = 0.0f;
    top[lane] = g.format.values == TW_CODES  ? largest[lane] / g.format.low
                : g.format.values == TW_E2M1 ? power_below(fabsf(largest[lane])) / 8.0f
                : g.format.values == TW_E4M3 ? fabsf(largest[lane]) / kLargestE4m3
                                             : fabsf(largest[lane]) / 127.0f;
  }
  if (g.format.zeros) find_range(g, found->zero, top);
  for (int i = 0; i < g.format.steps; ++i) consider(g, top, g.format.ladder[i], found);
  if (g.format.values != TW_CODES || g.format.zeros) return;
  for (int lane = 0; lane < kLanes; ++lane) top[lane] = fabsf(largest[lane]) / g.format.high;
  for (int i = 0; i < g.format.steps; ++i) consider(g, top, g.format.ladder[i], found);
}

// Puts the bits of element k of a row where layout.h has them. `group` was zeros.
void put(uint8_t* group, int64_t k, int lane, int bits, int code) {
  const int64_t step = k / 4;
  uint8_t* line = group + lane * 4 + k % 4;
  if (bits == 3) {
    line += step / 8 * 192;
    line[128] |= (uint8_t)(code >> 2 << step % 8);
    line[step % 8 / 4 * 64] |= (uint8_t)((code & 3) << step % 4 * 2);
  } else {
    line[step * bits / 8 * 64] |= (uint8_t)(code << step * bits % 8);
  }
}

void write_values(const GroupOf16& g, const Found& found, uint8_t* to) {
  float inverse[kLanes];
  invert(found.scale, inverse);
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float over = scaled(g.x[k][lane], found.scale[lane], inverse[lane], g.format);
      const float value = nearest(over, g.format, found.zero[lane]);
      put(to, k, lane, g.format.bits, code_of(value, g.format, found.zero[lane]));
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

float between(float low, float value, float high) {
  const float raised = value < low ? low : value;
  return raised > high ? high : raised;
}

void find_ends(const GroupOf16& g, float* low, float* high) {
  memcpy(low, g.x[0], sizeof(Lanes));
  memcpy(high, g.x[0], sizeof(Lanes));
  for (int64_t k = 1; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      low[lane] = g.x[k][lane] < low[lane] ? g.x[k][lane] : low[lane];
      high[lane] = g.x[k][lane] > high[lane] ? g.x[k][lane] : high[lane];
    }
  }
}

// Gathers group i of two levels, which has fewer columns where the row ends.
GroupOf16 take_group(const tw_quantize_weights_args* a, int64_t i) {
  gather(a, i * a->group, a->group, (Lanes*)a->x);
  const int64_t left = a->k - i * a->group;
  return {(const Lanes*)a->x, left < a->group ? left : a->group, search_of(a->dtype, a->group)};
}

// Finds the scales of the rows of a panel of two levels.
void find_row_scales(const tw_quantize_weights_args* a, int64_t groups, float* scale) {
  float range[kLanes] = {}, largest[kLanes] = {};
  for (int64_t i = 0; i < groups; ++i) {
    float low[kLanes], high[kLanes];
    find_ends(take_group(a, i), low, high);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float reached = high[lane] / (kCodes * kMostStep) - low[lane] / (kCodes * kMostStep);
      const float size = high[lane] > -low[lane] ? high[lane] : -low[lane];
      range[lane] = reached > range[lane] ? reached : range[lane];
      largest[lane] = size > largest[lane] ? size : largest[lane];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const float reaches = largest[lane] / 127.0f;
    const float least = range[lane] > reaches ? range[lane] : reaches;
    scale[lane] = least >= kTiny ? least : 0.0f;
  }
}

// The search for the steps and offsets of one group. scale: of the rows; inverse: of the scales.
struct StepsOf16 {
  GroupOf16 group;
  const float *scale, *inverse;
  float step[kLanes], offset[kLanes], error[kLanes];

  float code(int64_t k, int lane, float s, float o) const {
    return between(0.0f, whole((group.x[k][lane] * inverse[lane] - o) * (1.0f / s)), kCodes);
  }

  // Tries a step and an offset of a row. Keeps the smaller error; the earlier choice on a tie.
  void consider(int lane, float s, float o) {
    float sum = 0.0f;
    for (int64_t k = 0; k < group.size; ++k) {
      const float value = o + code(k, lane, s, o) * s;
      const float difference = group.x[k][lane] - value * scale[lane];
      sum += difference * difference;
    }
    if (sum < error[lane]) error[lane] = sum, step[lane] = s, offset[lane] = o;
  }

  void search() {
    float low[kLanes], high[kLanes];
    find_ends(group, low, high);
    for (int lane = 0; lane < kLanes; ++lane) {
      error[lane] = INFINITY, step[lane] = 1.0f, offset[lane] = 0.0f;
      const float from = low[lane] * inverse[lane], to = high[lane] * inverse[lane];
      const float middle = (from + to) * 0.5f, reaching = whole((to - from) * (1.0f / kCodes) + 0.5f);
      for (const float less : kSteps) {
        const float s = between(1.0f, reaching - less, kMostStep);
        for (const float centre : kCentres)
          consider(lane, s, between(-128.0f, whole(middle - centre * s), 127.0f - kCodes * s));
      }
    }
  }

  // size: that of a whole group.
  void write(uint8_t* to, int64_t size) const {
    for (int64_t k = 0; k < size; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) {
        uint8_t* byte = to + k / 8 * 64 + lane * 4 + k % 4;
        *byte = (uint8_t)(*byte | (int)code(k, lane, step[lane], offset[lane]) << k % 8 / 4 * 4);
      }
    }
  }
};

void quantize_to_steps(const tw_quantize_weights_args* a) {
  const int64_t groups = tw_quantized_groups(a->k, a->group);
  float scale[kLanes], inverse[kLanes];
  find_row_scales(a, groups, scale);
  invert(scale, inverse);
  memcpy(a->panel, scale, sizeof scale);
  for (int64_t i = 0; i < groups; ++i) {
    const GroupOf16 g = take_group(a, i);
    StepsOf16 steps = {g, scale, inverse, {}, {}, {}};
    steps.search();
    measure(g, steps.error, a);
    write_steps(steps.step, steps.offset, a, i);
    steps.write((uint8_t*)a->panel + tw_quantized_group_offset(a->dtype, a->k, a->group, i), a->group);
  }
}

}  // namespace

extern "C" void tw_quantize_weights_scalar(const tw_quantize_weights_args* a) {
  if (tw_has_steps(a->dtype)) return quantize_to_steps(a);
  const int64_t size = tw_quantized_group(a->k, a->group), groups = tw_quantized_groups(a->k, a->group);
  Lanes* x = (Lanes*)a->x;
  const GroupOf16 g = {x, size, search_of(a->dtype, a->group)};
  char* panel = (char*)a->panel;
  for (int64_t i = 0; i < groups; ++i) {
    Found found;
    gather(a, i * size, size, x);
    search(g, &found);
    measure(g, found.error, a);
    write_zeros(found.zero, a, i);
    write_scales(found.scale, a->dtype, a->group,
                 panel + tw_quantized_scale_offset(a->dtype, a->k, a->group, i));
    write_values(g, found, (uint8_t*)panel + tw_quantized_group_offset(a->dtype, a->k, a->group, i));
  }
}
