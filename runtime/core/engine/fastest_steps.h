// The fastest steps so far: what a request takes at least. It never says more than was possible once, so a
// request that it gives up could not have ended in time.
#ifndef TENSORWRIGHT_RUNTIME_CORE_FASTEST_STEPS_H_
#define TENSORWRIGHT_RUNTIME_CORE_FASTEST_STEPS_H_

#include <algorithm>
#include <cstdint>

namespace tensorwright {

class FastestSteps {
 public:
  void observe(int32_t tokens, double seconds) {
    if (tokens < 1 || !(seconds > 0)) return;
    step_s_ = known_ ? std::min(step_s_, seconds) : seconds;
    token_s_ = known_ ? std::min(token_s_, seconds / tokens) : seconds / tokens;
    known_ = true;
  }
  // Returns the least seconds in which `prompt` tokens are computed and then a token is drawn in each of
  // `steps` further steps; 0 before the first step.
  double least(int32_t prompt, int32_t steps) const {
    if (!known_) return 0;
    return std::max(step_s_, prompt * token_s_) + steps * step_s_;
  }

 private:
  bool known_ = false;
  double step_s_ = 0, token_s_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_FASTEST_STEPS_H_
