// How an engine runs, and what makes that impossible.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_

#include <cstdint>

#include "runtime/core/executor.h"

namespace tensorwright {

struct EngineOptions {
  int64_t kv_cache_bytes = 0;  // shared by the cache groups, each gets as many blocks as the others
  int32_t max_batch_size = 1;  // sequences running at once
  int32_t max_num_tokens = 1;  // tokens in a step, at least max_batch_size
  int32_t max_queue = 1024;    // requests alive beyond max_batch_size, before submit refuses more
  bool prefix_cache = true;
  // For tests.
  int32_t max_chunk = 0;            // tokens of one prefill in a step; 0: no cap
  int32_t debug_preempt_every = 0;  // steps between forced preemptions; 0: none
  uint64_t debug_seed = 0;          // who is preempted
};

// Throws Error{"InvalidOptionError"}.
void validate_options(const EngineOptions& options);
// Blocks per cache group. Throws Error{"OutOfMemoryError"} if not one fits.
int32_t count_blocks(const ModelFacts& facts, int64_t bytes);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_OPTIONS_H_
