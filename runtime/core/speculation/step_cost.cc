#include "runtime/core/speculation/step_cost.h"

#include <algorithm>

namespace tensorwright {

void StepCost::observe(int32_t tokens, double seconds) {
  if (tokens < 1 || !(seconds > 0)) return;
  auto at = std::ranges::lower_bound(kSizes, tokens);
  if (at == kSizes.end()) return;  // a long prefill says nothing of a few tokens more
  double& average = average_[static_cast<size_t>(at - kSizes.begin())];
  // A size between two kept ones is counted for the larger, in proportion.
  const double scaled = seconds * *at / tokens;
  const double measured = *at == tokens ? seconds : std::min(scaled, seconds * 1.25);
  // One slow step, when something else had the processor, must not count much.
  const double bounded = average > 0 ? std::min(measured, 4 * average) : measured;
  average = average > 0 ? (1 - kNew) * average + kNew * bounded : bounded;
}

double StepCost::seconds(int32_t tokens) const {
  double last = 0, before = 0;
  int32_t last_size = 0, before_size = 0;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (average_[i] <= 0) continue;
    const double here = std::max(average_[i], last);
    if (tokens <= kSizes[i]) {
      if (last_size == 0 || tokens == kSizes[i]) return here;
      return last + (here - last) * (tokens - last_size) / (kSizes[i] - last_size);
    }
    before = last, before_size = last_size;
    last = here, last_size = kSizes[i];
  }
  if (last_size == 0) return 0;
  const double slope = before_size > 0 ? (last - before) / (last_size - before_size) : last / last_size;
  return last + slope * (tokens - last_size);
}

}  // namespace tensorwright
