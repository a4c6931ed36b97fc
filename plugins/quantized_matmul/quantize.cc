#include "plugins/quantized_matmul/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/common/exp.h"

namespace tensorwright {
namespace {

constexpr int kLanes = TW_LANES;
constexpr float kTiny = 0x1p-120f;

// The factors t of quantize.py.
template <size_t N>
struct Ladder {
  float step[N];
  explicit Ladder(double by) {
    for (size_t i = 0; i < N; ++i) step[i] = static_cast<float>(1 - by * static_cast<double>(i));
  }
};

// The 16 rows of a group, side by side: [elements][16].
using Lanes = float[kLanes];

struct GroupOf16 {
  const Lanes* x;
  int64_t size;
  int low, high;  // range of the values
};

void invert(const float* scale, float* inverse) {
  for (int lane = 0; lane < kLanes; ++lane) inverse[lane] = scale[lane] != 0 ? 1.0f / scale[lane] : 0.0f;
}

// Round to nearest even by the float's own rounding; values are far below 2^22.
float nearest(float value, float low, float high) {
  return std::min(std::max((value + TW_EXP_ROUND) - TW_EXP_ROUND, low), high);
}

void squared_error(const GroupOf16& g, const float* scale, float* error) {
  float inverse[kLanes], sum[kLanes] = {};
  invert(scale, inverse);
  const auto low = static_cast<float>(g.low), high = static_cast<float>(g.high);
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float difference = g.x[k][lane] - nearest(g.x[k][lane] * inverse[lane], low, high) * scale[lane];
      sum[lane] += difference * difference;
    }
  }
  std::memcpy(error, sum, sizeof sum);
}

// Keeps in `best` and `scale` what has the smaller error; the earlier one on a tie.
void consider(const GroupOf16& g, const float* top, float t, bool narrow, float* best, float* scale) {
  float candidate[kLanes], error[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const float value = top[lane] * t;
    const float stored = narrow ? tw_bf16_to_f32(tw_f32_to_bf16(value)) : value;
    candidate[lane] = std::fabs(stored) >= kTiny ? stored : 0.0f;
  }
  squared_error(g, candidate, error);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!(error[lane] < best[lane])) continue;
    best[lane] = error[lane];
    scale[lane] = candidate[lane];
  }
}

// The signed value of the largest magnitude of each lane; the first of equals.
void find_largest(const GroupOf16& g, float* signed_largest) {
  float most[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) signed_largest[lane] = g.size > 0 ? g.x[0][lane] : 0.0f;
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float magnitude = std::fabs(g.x[k][lane]);
      signed_largest[lane] = magnitude > most[lane] ? g.x[k][lane] : signed_largest[lane];
      most[lane] = std::max(most[lane], magnitude);
    }
  }
}

// The scales of a group by range search, and their error.
void search(const GroupOf16& g, int dtype, bool whole, float* scale, float* error) {
  static const Ladder<8> kInt4(0.04);
  static const Ladder<3> kInt8(0.02);
  static const Ladder<10> kWhole(0.05);
  float largest[kLanes], top[kLanes];
  find_largest(g, largest);
  for (int lane = 0; lane < kLanes; ++lane) {
    error[lane] = std::numeric_limits<float>::infinity();
    scale[lane] = 0.0f;
    top[lane] = dtype == TW_I8 ? std::fabs(largest[lane]) / 127.0f : largest[lane] / -8.0f;
  }
  const std::span<const float> ladder = whole            ? std::span<const float>(kWhole.step)
                                        : dtype == TW_I8 ? std::span<const float>(kInt8.step)
                                                         : std::span<const float>(kInt4.step);
  for (float t : ladder) consider(g, top, t, !whole, error, scale);
  if (dtype == TW_I8) return;
  for (int lane = 0; lane < kLanes; ++lane) top[lane] = std::fabs(largest[lane]) / 7.0f;
  for (float t : ladder) consider(g, top, t, !whole, error, scale);
}

void write_scales(const float* scale, bool whole, char* to) {
  if (whole) {
    std::memcpy(to, scale, sizeof(Lanes));
    return;
  }
  uint16_t bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = tw_f32_to_bf16(scale[lane]);
  std::memcpy(to, bits, sizeof bits);
}

void write_values(const GroupOf16& g, const float* scale, int dtype, uint8_t* to) {
  float inverse[kLanes];
  invert(scale, inverse);
  for (int64_t k = 0; k < g.size; ++k) {
    uint8_t* line = to + (dtype == TW_I8 ? k / 4 : k / 8) * 64 + k % 4;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int value = static_cast<int>(
          nearest(g.x[k][lane] * inverse[lane], static_cast<float>(g.low), static_cast<float>(g.high)));
      uint8_t& byte = line[lane * 4];
      if (dtype == TW_I8) {
        byte = static_cast<uint8_t>(value);
      } else {
        byte = static_cast<uint8_t>(k % 8 < 4 ? value + 8 : byte | (value + 8) << 4);
      }
    }
  }
}

// Rows [row, row + 16) and columns [begin, begin + size) of the source, zeros where it has none.
void gather(const PackSource& source, int64_t row, int64_t begin, int64_t size, Lanes* x) {
  std::memset(x, 0, static_cast<size_t>(size) * sizeof(Lanes));
  const int64_t end = std::min(begin + size, source.k);
  for (int64_t lane = 0; lane < kLanes && row + lane < source.rows; ++lane) {
    const int64_t at = (row + lane) * source.stride;
    if (source.dtype == TW_BF16) {
      const auto* from = static_cast<const uint16_t*>(source.data) + at;
      for (int64_t k = begin; k < end; ++k) x[k - begin][lane] = tw_bf16_to_f32(from[k]);
    } else {
      const auto* from = static_cast<const float*>(source.data) + at;
      for (int64_t k = begin; k < end; ++k) x[k - begin][lane] = from[k];
    }
  }
}

void measure(const GroupOf16& g, const float* error, QuantizationError* total) {
  float sum[kLanes] = {};
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += g.x[k][lane] * g.x[k][lane];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    total->weight += static_cast<double>(sum[lane]);
    total->error += static_cast<double>(error[lane]);
  }
}

bool finite(const GroupOf16& g) {
  float sum = 0;  // stays 0 unless something is infinite or NaN
  for (int64_t k = 0; k < g.size; ++k) {
    for (int lane = 0; lane < kLanes; ++lane) sum += g.x[k][lane] * 0.0f;
  }
  return sum == 0.0f;
}

}  // namespace

QuantizationError quantize_panels(int dtype, int64_t group, const PackSource& source, void* panels,
                                  int64_t stride) {
  const int64_t size = tw_quantized_group(source.k, group), groups = tw_quantized_groups(source.k, group);
  std::vector<float> buffer(static_cast<size_t>(size * kLanes));
  auto* x = reinterpret_cast<Lanes*>(buffer.data());
  const GroupOf16 g = {x, size, dtype == TW_I8 ? -127 : -8, dtype == TW_I8 ? 127 : 7};
  QuantizationError total;
  char* panel = static_cast<char*>(panels);
  for (int64_t row = 0; row < source.rows; row += kLanes, panel += stride) {
    std::memset(panel, 0, static_cast<size_t>(tw_quantized_panel_bytes(dtype, source.k, group)));
    for (int64_t i = 0; i < groups; ++i) {
      float scale[kLanes], error[kLanes];
      gather(source, row, i * size, size, x);
      total.finite = total.finite && finite(g);
      search(g, dtype, group == 0, scale, error);
      measure(g, error, &total);
      write_scales(scale, group == 0, panel + tw_quantized_scale_offset(dtype, source.k, group, i));
      write_values(g, scale, dtype,
                   reinterpret_cast<uint8_t*>(panel) + tw_quantized_group_offset(dtype, source.k, group, i));
    }
  }
  return total;
}

}  // namespace tensorwright
