// Estimates the seconds of a step from the number of its tokens, out of the steps that were measured.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_COST_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_COST_H_

#include <array>
#include <cstdint>

namespace tensorwright {

class StepCost {
 public:
  // Counts a step. A step of a rare size says as much as one of a frequent size.
  void observe(int32_t tokens, double seconds);
  // Returns the seconds of a step of this many tokens: between two measured sizes on the line between them,
  // beyond the largest on the line through the last two, and never less than a smaller step takes. Returns 0
  // before anything was measured.
  double seconds(int32_t tokens) const;
  // Returns the seconds that `more` tokens add to a step of `tokens`.
  double of_more(int32_t tokens, int32_t more) const { return seconds(tokens + more) - seconds(tokens); }

 private:
  // The sizes at which the time is kept. Kernels take rows in groups, so that time goes up in steps: small
  // sizes are kept one by one.
  static constexpr std::array<int32_t, 22> kSizes = {1,  2,  3,  4,  5,  6,  7,  8,   10,  12,  14,
                                                     16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512};
  // The share of a new measurement in the average.
  static constexpr double kNew = 0.1;

  std::array<double, kSizes.size()> average_ = {};  // seconds; 0: not measured
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_COST_H_
