#include "runtime/core/rows/logit_row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "plugins/common/dispatch.h"
#include "plugins/logits/kernels.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Calls fn(index of the first value, maxima of the next blocks) until the row ends. Returns whether the row
// has a NaN.
template <typename Fn>
bool for_maxima(std::span<const float> row, size_t block, Fn&& fn) {
  constexpr size_t kAtOnce = 64;
  float maxima[kAtOnce];
  bool nan = false;
  for (size_t i = 0; i < row.size(); i += kAtOnce * block) {
    const size_t part = std::min(kAtOnce * block, row.size() - i);
    nan |=
        logit_loops().maxima(row.data() + i, static_cast<int64_t>(part), static_cast<int64_t>(block), maxima);
    fn(i, std::span<const float>(maxima, (part + block - 1) / block));
  }
  return nan;
}

// Collects the values that are at least as large as the k-th largest of the blocks' maxima. The k-th largest
// value is one of them, because k values are at least as large as that maximum.
Collected above_kth_maximum(std::span<const float> row, size_t k) {
  // The blocks are as large as possible while there are far more of them than k.
  const size_t block = row.size() / TW_ROW_BLOCK >= 2 * k ? size_t{TW_ROW_BLOCK} : size_t{TW_ROW_GROUP};
  std::vector<float> maxima;
  maxima.reserve(row.size() / block + 1);
  for_maxima(row, block, [&](size_t, std::span<const float> some) {
    maxima.insert(maxima.end(), some.begin(), some.end());
  });
  float bound = kLowest;
  if (k <= maxima.size()) {
    std::vector<float> sorted = maxima;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(k - 1), sorted.end(),
                     std::greater<>());
    bound = sorted[k - 1];
  }
  Collected found;
  for (size_t i = 0; i < maxima.size(); ++i) {
    if (maxima[i] < bound) continue;
    const size_t first = i * block;
    found.append(row.subspan(first, std::min(block, row.size() - first)), bound,
                 std::numeric_limits<float>::infinity(), static_cast<int32_t>(first));
  }
  return found;
}

float kth_of(const Collected& found, size_t k) {
  std::vector<float> values(found.values.begin(),
                            found.values.begin() + static_cast<std::ptrdiff_t>(found.size));
  const auto kth = values.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  return *kth;
}

}  // namespace

const tw_logits_loops& logit_loops() {
  static const tw_logits_loops& chosen = *choose("logits", logits_kernels(), selected_isa())();
  return chosen;
}

RowMax row_max(std::span<const float> row) {
  float max = kLowest;
  size_t begin = 0;
  const bool nan = for_maxima(row, TW_ROW_BLOCK, [&](size_t first, std::span<const float> maxima) {
    for (size_t i = 0; i < maxima.size(); ++i) {
      if (maxima[i] > max) max = maxima[i], begin = first + i * TW_ROW_BLOCK;
    }
  });
  const char* wrong = nan ? "NaN" : max == kLowest ? "-inf throughout" : std::isinf(max) ? "+inf" : nullptr;
  if (wrong) {
    throw Error("NumericalError", "[sampler] logits must be finite or -inf, and one of them finite, got " +
                                      std::string(wrong) +
                                      "; check the checkpoint and the build's precision");
  }
  auto from = row.begin() + static_cast<std::ptrdiff_t>(begin);
  return {max, static_cast<int32_t>(std::find(from, row.end(), max) - row.begin())};
}

double exp_below(std::span<const float> x, float max, double* out) {
  return logit_loops().exp_all(x.data(), static_cast<int64_t>(x.size()), max, out);
}

double sum_exp_below(std::span<const float> x, float max) {
  return logit_loops().sum_exp(x.data(), static_cast<int64_t>(x.size()), max);
}

double logprob(std::span<const float> row, int32_t token) {
  const float max = row_max(row).value;
  const double log_total = static_cast<double>(max) + std::log(sum_exp_below(row, max));
  return static_cast<double>(row[static_cast<size_t>(token)]) - log_total;
}

int32_t count_greater(std::span<const float> row, float value) {
  return logit_loops().count_greater(row.data(), static_cast<int64_t>(row.size()), value);
}

void divide_row(std::span<const float> row, float divisor, float* out) {
  logit_loops().divide(row.data(), static_cast<int64_t>(row.size()), divisor, out);
}

void mask_row(std::span<const float> row, std::span<const uint32_t> mask, float* out) {
  logit_loops().mask(row.data(), static_cast<int64_t>(row.size()), mask.data(), out);
}

void Collected::append(std::span<const float> part, float low, float high, int32_t first) {
  const size_t room = size + part.size() + TW_LANES;
  if (values.size() < room) values.resize(2 * room), ids.resize(2 * room);
  size += static_cast<size_t>(logit_loops().collect(part.data(), static_cast<int64_t>(part.size()), low, high,
                                                    first, values.data() + size, ids.data() + size));
}

void top_ids(std::span<const float> row, int32_t k, std::vector<int32_t>* ids) {
  const Collected found = above_kth_maximum(row, static_cast<size_t>(k));
  const float threshold = kth_of(found, static_cast<size_t>(k));
  ids->clear();
  for (size_t i = 0; i < found.size; ++i) {
    if (found.values[i] >= threshold) ids->push_back(found.ids[i]);
  }
}

float kth_largest(std::span<const float> row, int32_t k) {
  return kth_of(above_kth_maximum(row, static_cast<size_t>(k)), static_cast<size_t>(k));
}

}  // namespace tensorwright
