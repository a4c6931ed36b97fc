// What Python says of the ranks of a parallel engine.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_RANK_OPTIONS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_RANK_OPTIONS_H_

#include <cstdint>
#include <memory>

#include "runtime/core/base/timeline.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/interface/ranks.h"

namespace tensorwright {

struct RankOptions {
  std::shared_ptr<Ranks> ranks;  // null: the engine is not parallel
  int tensor = 1, stages = 1;
  uint64_t fingerprint = 0;

  RankPlace place() const { return {ranks.get(), tensor, stages}; }
};

// Returns the executor of rank 0, which tells the others what to do; of an engine that is not parallel,
// `own`.
std::unique_ptr<Executor> lead_ranks(std::unique_ptr<Executor> own, const RankOptions& options,
                                     std::shared_ptr<Timeline> timeline = nullptr);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_RANK_OPTIONS_H_
