#include "runtime/core/logit_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "runtime/core/error.h"

namespace tensorwright {

namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 64;  // values per maximum in top_ids
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Lanes by index: the compiler may use vectors, the answer does not depend on it.
float block_max(const float* x, size_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kLowest);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

bool has_nan(const float* x, size_t n) {
  int32_t lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] |= x[i + j] != x[i + j];
  }
  for (; i < n; ++i) lanes[0] |= x[i] != x[i];
  return std::any_of(lanes, lanes + kLanes, [](int32_t lane) { return lane != 0; });
}

// exp(x) for x <= 0 by Cody-Waite reduction and a Taylor polynomial; plain arithmetic, so it vectorizes as it
// is.
inline double exp_negative(double x) {
  constexpr double kLog2e = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fee00000p-1,
                   kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, left in the low bits
  double shifted = x * kLog2e + kMagic;
  double n = shifted - kMagic;
  double r = (x - n * kLn2High) - n * kLn2Low;
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
  uint64_t bits = std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(shifted) << 52);
  // Too far below, -inf too: whatever came out is masked. In integers, since a comparison keeps the loops
  // scalar.
  uint64_t magnitude = std::bit_cast<uint64_t>(x) & ~(uint64_t{1} << 63);
  uint64_t keep = ((std::bit_cast<uint64_t>(700.0) - magnitude) >> 63) - 1;
  return std::bit_cast<double>(bits & keep);
}

}  // namespace

RowMax row_max(std::span<const float> row) {
  float max = block_max(row.data(), row.size());
  const char* wrong = has_nan(row.data(), row.size()) ? "NaN"
                      : max == kLowest                ? "-inf throughout"
                      : std::isinf(max)               ? "+inf"
                                                      : nullptr;
  if (wrong) {
    throw Error("NumericalError", "[sampler] logits must be finite or -inf, and one of them finite, got " +
                                      std::string(wrong) +
                                      "; check the checkpoint and the build's precision");
  }
  return {max, static_cast<int32_t>(std::find(row.begin(), row.end(), max) - row.begin())};
}

void exp_below(std::span<const float> x, float max, double* out) {
  double shift = max;
  for (size_t i = 0; i < x.size(); ++i) out[i] = exp_negative(static_cast<double>(x[i]) - shift);
}

double sum_exp_below(std::span<const float> x, float max) {
  double lanes[8] = {};
  double shift = max;
  size_t i = 0;
  for (; i + 8 <= x.size(); i += 8) {
    for (size_t j = 0; j < 8; ++j) lanes[j] += exp_negative(static_cast<double>(x[i + j]) - shift);
  }
  for (size_t j = 0; i + j < x.size(); ++j) lanes[j] += exp_negative(static_cast<double>(x[i + j]) - shift);
  for (size_t width = 4; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

double logprob(std::span<const float> row, int32_t token) {
  const float max = row_max(row).value;
  const double log_total = static_cast<double>(max) + std::log(sum_exp_below(row, max));
  return static_cast<double>(row[static_cast<size_t>(token)]) - log_total;
}

int32_t count_greater(std::span<const float> row, float value) {
  int32_t count = 0;
  for (float x : row) count += x > value;
  return count;
}

void top_ids(std::span<const float> row, int32_t k, std::vector<int32_t>* ids) {
  size_t n = row.size(), wanted = static_cast<size_t>(k);
  // The k-th largest of the blocks' maxima bounds the k-th largest value from below: only blocks that reach
  // it matter.
  std::vector<float> maxima;
  for (size_t i = 0; i < n; i += kBlock) maxima.push_back(block_max(&row[i], std::min(kBlock, n - i)));
  float bound = kLowest;
  if (wanted <= maxima.size()) {
    std::vector<float> sorted = maxima;
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
    bound = sorted[k - 1];
  }
  std::vector<float> values;
  ids->clear();
  for (size_t block = 0; block < maxima.size(); ++block) {
    if (maxima[block] < bound) continue;
    for (size_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) {
      if (row[i] < bound) continue;
      ids->push_back(static_cast<int32_t>(i));
      values.push_back(row[i]);
    }
  }
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  float threshold = values[k - 1];
  std::erase_if(*ids, [&](int32_t id) { return row[id] < threshold; });
}

}  // namespace tensorwright
