// A plan of the scheduler, spelled out for the executor: token ids, positions and where each goes in the
// cache.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_

#include "runtime/core/executor.h"
#include "runtime/core/scheduler.h"

namespace tensorwright {

// One logit row for each chunk that reaches the end of its sequence, in the order of the chunks. Reuses the
// vectors of `step`.
void build_step(const StepPlan& plan, int32_t groups, int32_t block_size, Step* step);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
