// How an engine runs, and what makes that impossible.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/cache/group_shape.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

struct EngineOptions {
  int64_t kv_cache_bytes = 0;  // for all cache groups, see share_blocks
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
  bool debug_stepped = false;       // no thread of its own: Engine::turn() does what that would do
  int32_t debug_lose_block = 0;     // the step after which a block is lost, which check() must find; 0: none
};

// Throws Error{"InvalidOptionError"}.
void validate_options(const EngineOptions& options);
// Each cache group gets as many blocks as the others, but one with a window no more than a full batch can
// hold in it; the others then get the more. Throws Error{"OutOfMemoryError"} if not one fits.
std::vector<GroupShape> share_blocks(const ModelFacts& facts, const EngineOptions& options);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
