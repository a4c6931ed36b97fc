// A step that the engine has planned: what its rows are for, and what is told of it when they are there.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_STARTED_STEP_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_STARTED_STEP_H_

#include <cstdint>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/base/timeline.h"
#include "runtime/core/scheduler/scheduler.h"
#include "runtime/core/scheduler/step_pace.h"
#include "runtime/core/speculation/drafter.h"

namespace tensorwright {

// The logit rows of a chunk: first `prompt` rows whose logprobs are reported or that are pooled, then, if a
// token is drawn, its row and one for each token of the draft.
struct WantedRows {
  Sequence* sequence;  // null once it has ended
  int32_t prompt;
  int32_t drawn;

  int32_t rows() const { return prompt + drawn; }
};

struct StartedStep {
  StepPlan plan;                   // empty once it is committed
  std::vector<WantedRows> wanted;  // of each chunk of the plan
  int32_t rows = 0;
  // Whether the next step may be started before the tokens of this one are known: the executor draws all of
  // them.
  bool leads = false;
  bool waits = false;  // whether one of its tokens waits for a mask
  int64_t number = 0;
  Clock::time_point begin, computed;
  StepTime time;
  PacedStep paced;
  std::vector<Span> spans;  // of the timeline; the times are still missing
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_STARTED_STEP_H_
