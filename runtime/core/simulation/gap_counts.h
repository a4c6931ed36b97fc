// Counts times between tokens, of which a simulation has hundreds of millions, in a memory of fixed size.
#ifndef TENSORWRIGHT_RUNTIME_CORE_GAP_COUNTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_GAP_COUNTS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tensorwright {

// A bin is 0.5 % wide. Its middle stands for all gaps in it, so that a percentile is off by at most a quarter
// of a per cent. The sum is exact. Gaps below a nanosecond or above a million seconds count for the outer
// bins.
class GapCounts {
 public:
  static constexpr size_t kBins = 7000;  // 1.005^7000 is 1.4e15, from a nanosecond to 1.4e6 seconds

  void add(int64_t nanoseconds) {
    // Sequences that run side by side have the same gaps.
    if (nanoseconds != last_) {
      last_ = nanoseconds;
      const double bin = std::log(static_cast<double>(std::max<int64_t>(nanoseconds, 1))) * kPerLog;
      last_bin_ = std::min(static_cast<size_t>(bin), kBins - 1);
    }
    ++counts_[last_bin_];
    ++count_;
    sum_ += static_cast<double>(nanoseconds);
    max_ = std::max(max_, nanoseconds);
  }
  const std::array<int64_t, kBins>& counts() const { return counts_; }
  int64_t count() const { return count_; }
  double sum_seconds() const { return sum_ * 1e-9; }
  double max_seconds() const { return static_cast<double>(max_) * 1e-9; }
  // Returns the middle of a bin in seconds.
  static double seconds_of(size_t bin) { return std::exp((static_cast<double>(bin) + 0.5) / kPerLog) * 1e-9; }

 private:
  static constexpr double kPerLog = 200.49958443;  // 1 / ln(1.005)

  std::array<int64_t, kBins> counts_ = {};
  int64_t count_ = 0, last_ = -1, max_ = 0;
  size_t last_bin_ = 0;
  double sum_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_GAP_COUNTS_H_
