// Says which rows an executor may draw from by itself: those of which nothing but the token is wanted, by a
// request that leaves the logits as they are.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SAMPLING_ROW_DRAW_H_
#define TENSORWRIGHT_RUNTIME_CORE_SAMPLING_ROW_DRAW_H_

#include <cstdint>

#include "runtime/core/interface/executor.h"
#include "runtime/core/sampling/logit_processors.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// Returns how an executor draws what Sampler::sample() would draw with the same arguments; not wanted where
// only the sampler can: it reports logprobs, searches by beams, changes the row, or leaves out tokens by
// typical_p or XTC.
RowDraw row_draw(const Sampling& sampling, uint64_t seed, int64_t position, const History& history);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SAMPLING_ROW_DRAW_H_
