#include "runtime/core/logit_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "plugins/common/dispatch.h"
#include "runtime/core/error.h"

namespace tensorwright {

namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 64;   // values per maximum in top_ids
constexpr size_t kScan = 2048;  // values looked through for the maximum's id
constexpr float kLowest = -std::numeric_limits<float>::infinity();

#define TW_INLINE inline __attribute__((always_inline))

// Lanes by index: the compiler may use vectors, the answer does not depend on it.
TW_INLINE float block_max(const float* x, size_t n) {
  float lanes[kLanes];
  for (size_t j = 0; j < kLanes; ++j) lanes[j] = kLowest;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  float max = lanes[0];
  for (size_t j = 1; j < kLanes; ++j) max = lanes[j] > max ? lanes[j] : max;
  return max;
}

TW_INLINE bool has_nan(const float* x, size_t n) {
  int32_t lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] |= x[i + j] != x[i + j];
  }
  for (; i < n; ++i) lanes[0] |= x[i] != x[i];
  int32_t any = 0;
  for (size_t j = 0; j < kLanes; ++j) any |= lanes[j];
  return any != 0;
}

// The maximum, where the first part of kScan values that has it begins, and whether a NaN is about.
struct Scan {
  float max = kLowest;
  size_t begin = 0;
  bool nan = false;
};

TW_INLINE Scan scan(const float* x, size_t n) {
  Scan found;
  for (size_t i = 0; i < n; i += kScan) {
    const size_t part = n - i < kScan ? n - i : kScan;
    found.nan |= has_nan(x + i, part);
    const float max = block_max(x + i, part);
    if (max > found.max) found.max = max, found.begin = i;
  }
  return found;
}

// exp(x) for x <= 0 by Cody-Waite reduction and a Taylor polynomial; plain arithmetic, so it vectorizes as it
// is.
TW_INLINE double exp_negative(double x) {
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

// Eight at a time, so that their exponentials hide the additions, each of which waits for the one before.
TW_INLINE double exp_all(const float* x, size_t n, double shift, double* out) {
  double total = 0;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) out[i + j] = exp_negative(static_cast<double>(x[i + j]) - shift);
    for (size_t j = 0; j < 8; ++j) total += out[i + j];
  }
  for (; i < n; ++i) total += out[i] = exp_negative(static_cast<double>(x[i]) - shift);
  return total;
}

TW_INLINE double sum_exp(const float* x, size_t n, double shift) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) lanes[j] += exp_negative(static_cast<double>(x[i + j]) - shift);
  }
  for (size_t j = 0; i + j < n; ++j) lanes[j] += exp_negative(static_cast<double>(x[i + j]) - shift);
  for (size_t width = 4; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

TW_INLINE int32_t count(const float* x, size_t n, float value) {
  int32_t greater = 0;
  for (size_t i = 0; i < n; ++i) greater += x[i] > value;
  return greater;
}

TW_INLINE void divide(const float* x, size_t n, float divisor, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = x[i] / divisor;
}

// A bit of its own for each lane: what needs no shift by lane is fast on every instruction set.
TW_INLINE void mask(const float* __restrict x, size_t n, const uint32_t* words, float* __restrict out) {
  constexpr size_t kWord = 32;
  uint32_t bits[kWord];
  for (size_t j = 0; j < kWord; ++j) bits[j] = uint32_t{1} << j;
  for (size_t i = 0; i < n; i += kWord) {
    const uint32_t word = words[i / kWord];
    if (n - i < kWord) {
      for (size_t j = 0; i + j < n; ++j) out[i + j] = word & bits[j] ? x[i + j] : kLowest;
      break;
    }
    for (size_t j = 0; j < kWord; ++j) out[i + j] = word & bits[j] ? x[i + j] : kLowest;
  }
}

TW_INLINE void maxima(const float* x, size_t n, float* out) {
  for (size_t i = 0; i < n; i += kBlock) *out++ = block_max(x + i, n - i < kBlock ? n - i : kBlock);
}

// The loops above, compiled for one instruction set: the source is the same, and so are the bits.
struct Loops {
  Scan (*scan)(const float*, size_t);
  double (*exp_all)(const float*, size_t, double, double*);
  double (*sum_exp)(const float*, size_t, double);
  int32_t (*count)(const float*, size_t, float);
  void (*divide)(const float*, size_t, float, float*);
  void (*mask)(const float*, size_t, const uint32_t*, float*);
  void (*maxima)(const float*, size_t, float*);
};

#define TW_LOOPS(NAME, ...)                                                                            \
  struct NAME {                                                                                        \
    __VA_ARGS__ static Scan scan_row(const float* x, size_t n) { return scan(x, n); }                  \
    __VA_ARGS__ static double exp_row(const float* x, size_t n, double shift, double* out) {           \
      return exp_all(x, n, shift, out);                                                                \
    }                                                                                                  \
    __VA_ARGS__ static double sum_row(const float* x, size_t n, double shift) {                        \
      return sum_exp(x, n, shift);                                                                     \
    }                                                                                                  \
    __VA_ARGS__ static int32_t count_row(const float* x, size_t n, float v) { return count(x, n, v); } \
    __VA_ARGS__ static void divide_row(const float* x, size_t n, float d, float* out) {                \
      divide(x, n, d, out);                                                                            \
    }                                                                                                  \
    __VA_ARGS__ static void mask_row(const float* x, size_t n, const uint32_t* words, float* out) {    \
      mask(x, n, words, out);                                                                          \
    }                                                                                                  \
    __VA_ARGS__ static void maxima_row(const float* x, size_t n, float* out) { maxima(x, n, out); }    \
    static constexpr Loops kLoops = {                                                                  \
        scan_row, exp_row, sum_row, count_row, divide_row, mask_row, maxima_row};                      \
  };
TW_LOOPS(Portable)
TW_LOOPS(ForAvx2, __attribute__((target("avx2"))))
TW_LOOPS(ForAvx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))))
#undef TW_LOOPS

const Loops& loops() {
  static const Loops& chosen = []() -> const Loops& {
    switch (selected_isa()) {
      case Isa::scalar:
        return Portable::kLoops;
      case Isa::avx2:
        return ForAvx2::kLoops;
      case Isa::avx512:
        return ForAvx512::kLoops;
    }
    return Portable::kLoops;
  }();
  return chosen;
}

}  // namespace

RowMax row_max(std::span<const float> row) {
  const Scan found = loops().scan(row.data(), row.size());
  const char* wrong = found.nan               ? "NaN"
                      : found.max == kLowest  ? "-inf throughout"
                      : std::isinf(found.max) ? "+inf"
                                              : nullptr;
  if (wrong) {
    throw Error("NumericalError", "[sampler] logits must be finite or -inf, and one of them finite, got " +
                                      std::string(wrong) +
                                      "; check the checkpoint and the build's precision");
  }
  auto from = row.begin() + static_cast<std::ptrdiff_t>(found.begin);
  return {found.max, static_cast<int32_t>(std::find(from, row.end(), found.max) - row.begin())};
}

double exp_below(std::span<const float> x, float max, double* out) {
  return loops().exp_all(x.data(), x.size(), max, out);
}

double sum_exp_below(std::span<const float> x, float max) { return loops().sum_exp(x.data(), x.size(), max); }

double logprob(std::span<const float> row, int32_t token) {
  const float max = row_max(row).value;
  const double log_total = static_cast<double>(max) + std::log(sum_exp_below(row, max));
  return static_cast<double>(row[static_cast<size_t>(token)]) - log_total;
}

int32_t count_greater(std::span<const float> row, float value) {
  return loops().count(row.data(), row.size(), value);
}

void divide_row(std::span<const float> row, float divisor, float* out) {
  loops().divide(row.data(), row.size(), divisor, out);
}

void mask_row(std::span<const float> row, std::span<const uint32_t> mask, float* out) {
  loops().mask(row.data(), row.size(), mask.data(), out);
}

void top_ids(std::span<const float> row, int32_t k, std::vector<int32_t>* ids) {
  size_t n = row.size(), wanted = static_cast<size_t>(k);
  // The k-th largest of the blocks' maxima bounds the k-th largest value from below: only blocks that reach
  // it matter.
  std::vector<float> maxima((n + kBlock - 1) / kBlock);
  loops().maxima(row.data(), n, maxima.data());
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
