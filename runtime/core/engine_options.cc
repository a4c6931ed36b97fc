#include "runtime/core/engine_options.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "runtime/core/error.h"

namespace tensorwright {

namespace {

void require_option(bool holds, const std::string& must, int64_t came, const std::string& remedy) {
  if (holds) return;
  throw Error("InvalidOptionError", "[engine] " + must + ", got " + std::to_string(came) + "; " + remedy);
}

}  // namespace

void validate_options(const EngineOptions& o) {
  require_option(o.max_batch_size >= 1, "max_batch_size must be at least 1", o.max_batch_size, "raise it");
  require_option(o.max_num_tokens >= o.max_batch_size,
                 "max_num_tokens must be at least max_batch_size " + std::to_string(o.max_batch_size),
                 o.max_num_tokens, "every running sequence needs a token per step: raise it");
  require_option(o.max_queue >= 1, "max_queue must be at least 1", o.max_queue, "raise it");
  require_option(o.kv_cache_bytes >= 0, "kv_cache_bytes must not be negative", o.kv_cache_bytes, "raise it");
  require_option(o.max_chunk >= 0, "max_chunk must be 0 (no cap) or positive", o.max_chunk, "raise it");
  require_option(o.debug_preempt_every >= 0, "debug_preempt_every must be 0 (never) or positive",
                 o.debug_preempt_every, "raise it");
}

// Slots are int32, which bounds a group's blocks too.
int32_t count_blocks(const ModelFacts& facts, int64_t bytes) {
  int64_t each = std::accumulate(facts.block_bytes.begin(), facts.block_bytes.end(), int64_t{0});
  if (facts.block_size < 1 || each < 1)
    throw std::logic_error("[engine] the executor's facts have no KV blocks");
  if (bytes < each) {
    throw Error("OutOfMemoryError", "[engine] kv_cache_bytes must hold at least one block of " +
                                        std::to_string(each) + " bytes, got " + std::to_string(bytes) +
                                        "; raise it");
  }
  return static_cast<int32_t>(
      std::min<int64_t>(bytes / each, std::numeric_limits<int32_t>::max() / facts.block_size));
}

}  // namespace tensorwright
