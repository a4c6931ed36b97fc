// The engine without its thread: requests in, steps, events out. One caller at a time.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/executor.h"
#include "runtime/core/kv_blocks.h"
#include "runtime/core/request.h"
#include "runtime/core/sampler.h"
#include "runtime/core/scheduler.h"
#include "runtime/core/step_builder.h"

namespace tensorwright {

struct EngineOptions {
  int64_t kv_cache_bytes = 0;  // shared by the cache groups, each gets as many blocks as the others
  int32_t max_batch_size = 1;  // sequences running at once
  int32_t max_num_tokens = 1;  // tokens in a step, at least max_batch_size
  int32_t max_queue = 1024;    // requests alive beyond max_batch_size, before submit refuses more
  // Prompt positions in a step whose logits are wanted (prompt_logprobs); each takes the memory of a logit
  // row.
  int32_t max_prompt_rows = 64;
  bool prefix_cache = true;
  // For tests.
  int32_t max_chunk = 0;            // tokens of one prefill in a step; 0: no cap
  int32_t debug_preempt_every = 0;  // steps between forced preemptions; 0: none
  uint64_t debug_seed = 0;          // who is preempted
};

struct EngineStats {
  // Blocks of each cache group; all groups have as many in each state. total = free + cached + used.
  int32_t total_blocks = 0, free_blocks = 0, cached_blocks = 0, used_blocks = 0;
  int64_t waste_slots = 0;  // slots of used blocks that hold no token; below block_size per running sequence
  int32_t running = 0, waiting = 0;
  int64_t evictions = 0;
  int64_t finished = 0, aborted = 0, timed_out = 0, failed = 0;  // requests
  int64_t generated_tokens = 0;
  SchedulerStats steps;
};

class EngineCore {
 public:
  // Throws Error: InvalidOptionError, OutOfMemoryError, and what the executor throws.
  EngineCore(std::unique_ptr<Executor> executor, const EngineOptions& options);

  const ModelFacts& facts() const { return executor_->facts(); }
  int32_t blocks() const { return kv_->group(0).total(); }

  // The request has been validated.
  void add(Request request, Clock::time_point arrived);
  // Ends it with finish "abort", or "error" if error is given; nothing if it is not alive.
  void end(int64_t id, const Error* error, std::vector<Event>* events);
  void end_all(std::vector<Event>* events);
  // Ends with finish "timeout" those whose time is up.
  void expire(Clock::time_point now, std::vector<Event>* events);
  // One step, if anything is alive. An executor that throws costs the requests at fault their life, no other.
  void step(std::vector<Event>* events);

  bool idle() const { return scheduler_->idle(); }
  EngineStats stats() const;

 private:
  bool run(StepPlan& plan, bool at_fault, std::vector<Event>* events);
  LogitRows execute(const StepPlan& plan, int32_t rows);
  std::span<const float> values(const LogitRows& logits, int32_t row) const;
  bool take_prompt_logprobs(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows,
                            std::vector<Event>* events);
  void take_token(Sequence& sequence, const LogitRows& logits, int32_t row, std::vector<Event>* events);
  void close(int64_t id, const char* finish, const Error* error, std::vector<Event>* events);
  Event event_of(const Sequence& sequence) const;

  std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvBlocks> kv_;
  std::unique_ptr<Scheduler> scheduler_;  // after kv_: sequences give their blocks back to it
  Sampler sampler_;
  Step step_;
  int64_t finished_ = 0, aborted_ = 0, timed_out_ = 0, failed_ = 0, generated_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_CORE_H_
