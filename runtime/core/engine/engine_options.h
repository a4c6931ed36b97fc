// The options that say how an engine runs, and their checks.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/core/base/timeline.h"
#include "runtime/core/cache/group_shape.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/speculation/drafter.h"
#include "runtime/core/tiers/block_tiers.h"

namespace tensorwright {

// The most states that prefix caching keeps. options/engine.py has it for Python.
inline constexpr int32_t kMaxSnapshots = 1 << 20;

struct EngineOptions {
  int64_t kv_cache_bytes = 0;  // for all cache groups together; see share_blocks
  int32_t max_batch_size = 1;  // sequences that run at once
  int32_t max_num_tokens = 1;  // tokens in a step, at least max_batch_size
  int32_t max_queue = 1024;    // requests alive beyond max_batch_size before submit() refuses more
  // Prompt positions in a step whose logits are reported (prompt_logprobs). Each takes the memory of a row of
  // logits.
  int32_t max_prompt_rows = 64;
  bool prefix_cache = true;
  // The most snapshots of the states of recurrent layers that the prefix cache keeps, besides the states of
  // max_batch_size sequences; without any, it reuses no prefix of a model with states.
  int32_t state_snapshots = 0;
  SpeculationOptions speculation;  // only with a proposer
  // Whether tokens that a grammar forces are computed with the token before them. The executor must compute a
  // sequence's tokens to the same bits in one step as in several.
  bool jump_forward = false;
  int64_t pinned_bytes = 0;  // of kv_cache_bytes, what pinned prefixes may hold (prefix_pins.h)
  TierOptions tiers;         // what keeps blocks that the prefix cache forgets
  // The events of the prefix cache that are kept for those who read them (cache/cache_log.h); 0: nobody can.
  // Blocks are named with tiers.secret, also where there are no tiers.
  int32_t cache_events = 0;
  double itl_goal_s = 0;  // seconds between two tokens of a completion; 0: none (step_pace.h)
  double ageing_s = 0;    // seconds of waiting that are worth one priority; 0: none (scheduler.h)
  // What gets the spans of steps and requests; null: nothing is kept.
  std::shared_ptr<Timeline> timeline = nullptr;
  // The following options are for tests.
  int32_t max_chunk = 0;            // tokens of one prefill in a step; 0: no cap
  int32_t debug_preempt_every = 0;  // steps between forced preemptions; 0: none
  uint64_t debug_seed = 0;          // chooses the sequence that is preempted
  bool debug_stepped = false;       // the engine has no thread; Engine::turn() runs a round of the loop
  int32_t debug_lose_block = 0;     // the step after which a block is lost, for check() to find; 0: none
};

// Throws Error{"InvalidOptionError"} if an option is out of its range.
void validate_options(const EngineOptions& options);
// Throws Error{"InvalidOptionError"} if a step or a capped chunk is too short for the chunks of a model whose
// chunks end at certain positions.
void require_whole_chunks(const ModelFacts& facts, const EngineOptions& options);
// Returns how many prompt positions a step may report: max_prompt_rows, but no fewer than the shortest chunk.
int32_t prompt_rows_of(const ModelFacts& facts, const EngineOptions& options);
// Divides the memory of the cache. Each cache group gets as many blocks as the others, but a group with a
// window no more than a full batch can hold in it; groups without a window share the rest. A model without
// attention gets one group of blocks that take no memory: they count positions, as many as a full batch and
// the snapshots need. Throws Error{"OutOfMemoryError"} if not one block per group fits.
std::vector<GroupShape> share_blocks(const ModelFacts& facts, const EngineOptions& options);
// Returns the blocks of each group that pinned prefixes may hold. A group with a window has as many more for
// them.
int32_t pinned_room(const ModelFacts& facts, const EngineOptions& options);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
