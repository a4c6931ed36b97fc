// One engine of a simulated fleet: the real EngineCore over an executor that only counts. It has a clock of
// its own, which the fleet reads: the end of the step under way.
#ifndef TENSORWRIGHT_RUNTIME_CORE_REPLICA_H_
#define TENSORWRIGHT_RUNTIME_CORE_REPLICA_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/engine/engine_core.h"
#include "runtime/core/simulation/cost_model.h"

namespace tensorwright {

// Sums over the time in which a replica had a step under way. Divided by busy_ns they are means over it.
struct ReplicaUse {
  int64_t busy_ns = 0;
  double running_ns = 0, waiting_ns = 0, used_share_ns = 0;
  int32_t max_waiting = 0;
  double max_used_share = 0;  // of the blocks of the KV cache
  int64_t refused = 0;
};

class Replica {
 public:
  // costs must outlive the replica. seed: of the draws of how long steps take.
  Replica(const ModelFacts& facts, const EngineOptions& options, const CostModel& costs, uint64_t seed);

  // Takes a request, unless max_batch_size + max_queue of them are alive: then it returns false. Throws
  // Error{"PromptTooLongError"} for a request that the engine could never end.
  bool offer(Request request, Clock::time_point now);
  // Takes the offered requests and runs a step, with the clock of the thread held. Returns false if there is
  // nothing to do. The events are those at the end of the step, and of requests that cannot meet their
  // deadline any more.
  bool step(Clock::time_point now, std::vector<Event>* events);
  // Returns the end of the last step.
  Clock::time_point until() const { return until_; }
  // Whether a step is under way, or about to begin.
  bool awake = false;

  const ReplicaUse& use() const { return use_; }
  EngineStats stats() const { return core_.stats(); }

 private:
  void count(Clock::duration length, int32_t waiting) noexcept;

  EngineCore core_;
  ModelFacts facts_;  // with room for all tokens of simulated prompts
  const int32_t max_seqs_;
  const size_t max_alive_;
  std::vector<std::pair<Request, Clock::time_point>> inbox_;
  Clock::time_point until_;
  ReplicaUse use_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_REPLICA_H_
