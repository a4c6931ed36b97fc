// Measures what steps of a few tokens cost, before there are any requests.
#ifndef TENSORWRIGHT_RUNTIME_CORE_MEASURE_STEPS_H_
#define TENSORWRIGHT_RUNTIME_CORE_MEASURE_STEPS_H_

#include <cstdint>
#include <functional>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// The most tokens of a measured step.
constexpr int32_t kMeasuredTokens = 16;

// Returns a step of one sequence whose prompt has `tokens` tokens, in the first blocks of the cache, with a
// row of logits for each.
Step prompt_step(const ModelFacts& facts, int32_t tokens);

// Runs steps of one sequence of 1 to `most` tokens, in the first blocks of the cache, which nobody may use
// yet, and tells the tokens and the seconds of each. It begins no further step once kMeasureSeconds are over.
// facts: those of the model, which must have no recurrent states.
void measure_steps(const ModelFacts& facts, int32_t most, const std::function<void(const Step&)>& run,
                   const std::function<void(int32_t, double)>& tell);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_MEASURE_STEPS_H_
