// A plan of the scheduler, spelled out for the executor: token ids, positions and where each goes in the
// cache.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
#define TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_

#include "runtime/core/interface/executor.h"
#include "runtime/core/scheduler/scheduler.h"

namespace tensorwright {

// In the order of the chunks, the logit rows: of each chunk its prompt rows, then one if it reaches the end
// of its sequence. Reuses the vectors of `step`.
void build_step(const StepPlan& plan, int32_t groups, int32_t block_size, Step* step);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STEP_BUILDER_H_
