// Turns a plan of the scheduler into a step for the executor: token ids, positions and their slots in the
// cache.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_

#include "runtime/core/interface/executor.h"
#include "runtime/core/scheduler/scheduler.h"

namespace tensorwright {

// The logit rows are in the order of the chunks: first the prompt rows of a chunk, then one row if the chunk
// reaches the end of its sequence. prompts: whether the step says how long the prompts are. Reuses the
// vectors of `step`.
void build_step(const StepPlan& plan, int32_t groups, int32_t block_size, Step* step, bool prompts = false);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
