#include "runtime/core/cuda/draw_fields.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tensorwright {

namespace {

enum Mode : int32_t { kHost = 0, kGreedy, kDrawn };  // the modes of op.py

constexpr double kUnit = 0x1p31;          // of uniform and of kept shares
constexpr double kDistanceUnit = 0x1p26;  // of min_p's distances
constexpr double kMostDistance = 31;

// Returns the share of the total below which the weight of all likelier tokens must be for a token to stay.
// The definition compares in float: a share stays that is rounded to a number above `bound`.
int32_t kept_share(double top_p) {
  if (top_p >= 1) return -1;
  const auto bound = static_cast<float>(1.0 - top_p);
  const double next = std::nextafter(bound, std::numeric_limits<float>::infinity());
  return static_cast<int32_t>(std::max(1.0 - (static_cast<double>(bound) + next) / 2, 0.0) * kUnit);
}

// Returns how far below the largest a score may be.
int32_t distance(double min_p) {
  const auto floor = static_cast<float>(min_p);
  if (!(floor > 0)) return -1;
  const double far = -std::log(static_cast<double>(floor));
  return far < kMostDistance ? static_cast<int32_t>(far * kDistanceUnit) : -1;
}

}  // namespace

void write_draw(const RowDraw& draw, int32_t* to) {
  std::fill_n(to, kDrawFields, 0);
  if (!draw.wanted) return;
  to[kMode] = draw.temperature > 0 ? kDrawn : kGreedy;
  if (to[kMode] == kGreedy) return;
  to[kTemperature] = std::bit_cast<int32_t>(static_cast<float>(draw.temperature));
  to[kTopK] = std::max(draw.top_k, 0);
  to[kUniform] = static_cast<int32_t>(draw.uniform * kUnit);
  to[kKeptShare] = kept_share(draw.top_p);
  to[kDistance] = distance(draw.min_p);
}

}  // namespace tensorwright
