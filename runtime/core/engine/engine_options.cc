#include "runtime/core/engine/engine_options.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

constexpr int32_t kMaxCacheEvents = 1 << 20;

void require_option(bool holds, const std::string& must, int64_t came, const std::string& remedy) {
  if (holds) return;
  throw Error("InvalidOptionError", "[engine] " + must + ", got " + std::to_string(came) + "; " + remedy);
}

constexpr double kMaxSeconds = 1e6;

// Checks a time that is 0 for none.
void require_seconds(double seconds, const char* name) {
  if (seconds >= 0 && seconds <= kMaxSeconds) return;  // false for NaN
  throw Error("InvalidOptionError", std::string("[engine] ") + name + " must be 0 (none) to " +
                                        std::to_string(kMaxSeconds) + " seconds, got " +
                                        std::to_string(seconds) + "; choose one in this range");
}

}  // namespace

void validate_options(const EngineOptions& o) {
  require_option(o.max_batch_size >= 1, "max_batch_size must be at least 1", o.max_batch_size, "raise it");
  require_option(o.max_num_tokens >= o.max_batch_size,
                 "max_num_tokens must be at least max_batch_size " + std::to_string(o.max_batch_size),
                 o.max_num_tokens, "every running sequence needs a token per step: raise it");
  require_option(o.max_queue >= 1, "max_queue_size must be at least 1", o.max_queue, "raise it");
  require_option(o.kv_cache_bytes >= 0, "kv_cache_memory must not be negative", o.kv_cache_bytes, "raise it");
  require_option(o.pinned_bytes >= 0 && o.pinned_bytes <= o.kv_cache_bytes,
                 "pinned_prefix_memory is a part of kv_cache_memory, and must be 0 (none) to " +
                     std::to_string(o.kv_cache_bytes),
                 o.pinned_bytes, "lower it, or raise kv_cache_memory");
  require_option(o.cache_events >= 0 && o.cache_events <= kMaxCacheEvents,
                 "cache_events must be 0 (none) to " + std::to_string(kMaxCacheEvents), o.cache_events,
                 "choose one in this range");
  require_option(o.max_chunk >= 0, "max_prefill_chunk must be 0 (no cap) or positive", o.max_chunk,
                 "raise it");
  require_option(o.max_prompt_rows >= 1, "max_prompt_logprob_rows must be at least 1", o.max_prompt_rows,
                 "raise it");
  require_option(o.state_snapshots >= 0 && o.state_snapshots <= kMaxSnapshots,
                 "state_snapshots must be 0 (none) to " + std::to_string(kMaxSnapshots), o.state_snapshots,
                 "choose one in this range");
  require_option(o.speculation.tokens >= 0 && o.speculation.tokens <= kMaxDraft,
                 "the tokens of a draft must be 0 (as many as pay) to " + std::to_string(kMaxDraft),
                 o.speculation.tokens, "choose one in this range");
  require_option(o.speculation.max_rows >= 1, "the drafted tokens of a step must be at least 1",
                 o.speculation.max_rows, "raise it");
  require_seconds(o.itl_goal_s, "itl_goal");
  require_seconds(o.ageing_s, "priority_ageing");
  require_option(o.debug_preempt_every >= 0, "debug_preempt_every must be 0 (never) or positive",
                 o.debug_preempt_every, "raise it");
}

void require_whole_chunks(const ModelFacts& facts, const EngineOptions& o) {
  const int64_t least = facts.chunk_multiple;
  if (least == 0) return;
  const std::string why =
      ", because the engine was built so that prompts are computed in chunks of that many";
  require_option(o.max_num_tokens - o.max_batch_size + 1 >= least,
                 "max_num_tokens must be at least " + std::to_string(o.max_batch_size - 1 + least) +
                     ", max_batch_size and a chunk of " + std::to_string(least) + why,
                 o.max_num_tokens, "raise it, or lower max_batch_size");
  require_option(o.max_chunk == 0 || o.max_chunk >= least,
                 "max_prefill_chunk must be 0 (no cap) or at least " + std::to_string(least) + why,
                 o.max_chunk, "raise it");
}

int32_t prompt_rows_of(const ModelFacts& facts, const EngineOptions& options) {
  return std::max(options.max_prompt_rows, facts.chunk_multiple);
}

namespace {

int64_t chunk_of(const EngineOptions& o) {
  return o.max_chunk > 0 ? std::min(o.max_chunk, o.max_num_tokens) : o.max_num_tokens;
}

// Returns the group of a model without attention, whose blocks only count positions. A long prefix whose
// blocks are more than kMaxBlocks is forgotten early.
GroupShape count_positions(const ModelFacts& facts, const EngineOptions& options) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 22;
  const int64_t longest = (facts.max_seq_len - 1) / facts.block_size + 1;
  const int64_t sequences = int64_t{options.max_batch_size} + options.state_snapshots;
  const int64_t most = std::min(std::max(kMaxBlocks, longest), int64_t{INT32_MAX} / facts.block_size);
  return {static_cast<int32_t>(std::min(longest * sequences, most))};
}

}  // namespace

int32_t pinned_room(const ModelFacts& facts, const EngineOptions& options) {
  if (options.pinned_bytes == 0) return 0;
  const int64_t each = std::accumulate(facts.block_bytes.begin(), facts.block_bytes.end(), int64_t{0});
  if (facts.state_bytes > 0 || each == 0 || !options.prefix_cache)
    throw Error(
        "InvalidOptionError",
        "[engine] pinned prefixes are a part of the prefix cache of a model without recurrent layers or a "
        "kv_budget; "
        "set enable_prefix_caching, or leave pinned_prefix_memory out");
  const int64_t room = options.pinned_bytes / each, all = options.kv_cache_bytes / each;
  if (room >= all || room < 1)
    throw Error("InvalidOptionError",
                "[engine] pinned_prefix_memory must hold 1 to " + std::to_string(all - 1) + " blocks of " +
                    std::to_string(each) + " bytes, so that kv_cache_memory has one for requests, got " +
                    std::to_string(options.pinned_bytes) + " bytes; choose another size");
  return static_cast<int32_t>(
      std::min<int64_t>(room, std::numeric_limits<int32_t>::max() / facts.block_size));
}

std::vector<GroupShape> share_blocks(const ModelFacts& facts, const EngineOptions& options) {
  if (facts.block_bytes.empty() && facts.block_size > 0 && facts.state_bytes > 0)
    return {count_positions(facts, options)};
  int64_t each = std::accumulate(facts.block_bytes.begin(), facts.block_bytes.end(), int64_t{0});
  if (facts.block_size < 1 || each < 1)
    throw std::logic_error("[engine] the executor's facts have no KV blocks");
  if (options.kv_cache_bytes < each) {
    throw Error("OutOfMemoryError", "[engine] kv_cache_memory must hold at least one block of " +
                                        std::to_string(each) + " bytes, got " +
                                        std::to_string(options.kv_cache_bytes) + "; raise it");
  }
  // Slots are numbered in int32, which limits the blocks of a group too.
  const int64_t limit = std::numeric_limits<int32_t>::max() / facts.block_size;
  std::vector<GroupShape> shapes(facts.block_bytes.size());
  int64_t alike = std::min(options.kv_cache_bytes / each, limit), left = options.kv_cache_bytes, open = 0;
  for (size_t group = 0; group < shapes.size(); ++group) {
    GroupShape& shape = shapes[group];
    shape.window = facts.group_windows[group];
    shape.chunked = facts.chunked(group);
    shape.sink_tokens = facts.sink_tokens(group);
    shape.kept = facts.budget(group).kept;
    shape.interval = facts.budget(group).interval;
    shape.blocks = static_cast<int32_t>(alike);
    if (shape.window == 0 && shape.kept == 0) {
      open += facts.block_bytes[group];
      continue;
    }
    int64_t held = shape.kept > 0 ? shape.kept_at_most(facts.block_size)
                                  : shape.sink_blocks(facts.block_size) +
                                        window_blocks(shape.window, chunk_of(options), facts.block_size);
    shape.max_held = static_cast<int32_t>(std::min(held, alike));
    shape.blocks =
        static_cast<int32_t>(std::min(alike, held * options.max_batch_size + pinned_room(facts, options)));
    left -= shape.blocks * facts.block_bytes[group];
  }
  for (GroupShape& shape : shapes) {
    if (shape.window == 0 && shape.kept == 0)
      shape.blocks = static_cast<int32_t>(std::min(left / open, limit));
  }
  return shapes;
}

}  // namespace tensorwright
