// An executor that computes nothing. A step moves the clock of the calling thread by the time that the cost
// model says, and all logits are zero, so that each sequence draws token 0.
#ifndef TENSORWRIGHT_RUNTIME_CORE_COUNTING_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_COUNTING_EXECUTOR_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/base/philox.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/simulation/cost_model.h"

namespace tensorwright {

class CountingExecutor : public Executor {
 public:
  // facts.vocab_size is taken as 1, since no token is looked at. costs: must outlive the executor. seed: of
  // the draws of how long steps take.
  CountingExecutor(const ModelFacts& facts, const CostModel& costs, uint64_t seed)
      : facts_(facts), costs_(costs), seed_(seed) {
    facts_.vocab_size = 1;
  }

  const ModelFacts& facts() const override { return facts_; }
  void allocate(const std::vector<int32_t>& /*blocks*/, int32_t /*max_tokens*/, int32_t /*max_rows*/,
                int32_t /*max_seqs*/, int32_t /*state_slots*/) override {}
  LogitRows run(const Step& step) override {
    const double seconds = costs_.seconds(step, philox_uniform(seed_, ++steps_));
    Clock::HeldHere::set(Clock::now() +
                         std::chrono::nanoseconds(std::max<int64_t>(1, std::llround(seconds * 1e9))));
    return {row_.data(), 0, step.rows()};
  }
  void copy_block(int32_t /*group*/, int32_t /*from*/, int32_t /*to*/) override {}
  void copy_state(int32_t /*from*/, int32_t /*to*/) override {}

 private:
  ModelFacts facts_;
  const CostModel& costs_;
  const uint64_t seed_;
  uint64_t steps_ = 0;
  const std::array<float, 1> row_ = {};
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_COUNTING_EXECUTOR_H_
