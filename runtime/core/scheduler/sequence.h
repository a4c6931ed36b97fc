// One completion of a request while it lives: its tokens, how far the cache has them, and the blocks they are
// in.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
#define TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// All but the blocks, which are counted and so not copied.
struct SequenceState {
  int64_t id = 0;               // of the request
  int32_t completion = 0;       // which of the request's
  int32_t forks = 0;            // completions that fork off this one once its prompt is computed
  uint64_t arrival = 0;         // order of submission; the scheduler sets it
  std::vector<int32_t> tokens;  // [prompt + generated]
  int32_t prompt_tokens = 0;
  std::shared_ptr<const Sampling> sampling;  // the request's
  uint64_t seed = 0;

  int32_t computed = 0;  // leading tokens whose keys and values are in the cache
  // Leading prompt positions told of, for prompt_logprobs; at least `computed` while scoring.
  int32_t scored = 0;
  int32_t tokens_when_admitted = 0;  // more by now: it got somewhere since its last (re)start
  int32_t cached_tokens = -1;        // prompt tokens the prefix cache had at the first start; -1: not started

  Clock::time_point arrived;
  Clock::time_point deadline = Clock::time_point::max();
  double queue_s = -1, first_token_s = -1;

  // The order in which sequences start, and the reverse of that in which they are preempted.
  bool before(const SequenceState& other) const {
    if (sampling->priority != other.sampling->priority) return sampling->priority > other.sampling->priority;
    return arrival != other.arrival ? arrival < other.arrival : completion < other.completion;
  }
  double since_arrival() const { return std::chrono::duration<double>(Clock::now() - arrived).count(); }
  // Of max_seqs: those of its forks are kept free for them.
  int32_t places() const { return 1 + forks; }
  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t generated() const { return size() - prompt_tokens; }
  // Tokens to compute before the next one can be sampled: 1 while decoding.
  int32_t pending() const { return size() - computed; }

  // Prompt positions whose logits are still to be told of. A recompute after a preemption tells of none
  // twice.
  bool scoring() const { return sampling->prompt_logprobs >= 0 && scored < prompt_tokens - 1; }
  // How many of the next `count` tokens are such positions: those from `scored` on. The last of the prompt is
  // not among them: its row is sampled from.
  int32_t prompt_rows(int32_t count) const {
    return scoring() ? std::max(0, std::min(computed + count, prompt_tokens - 1) - scored) : 0;
  }
  // The most pending tokens that take at most `rows` prompt rows.
  int32_t pending_within(int32_t rows) const {
    bool enough = !scoring() || rows >= prompt_tokens - 1 - scored;
    return enough ? pending() : scored + rows - computed;
  }
  // Tokens that the prefix cache may give. What is told of must be computed.
  std::span<const int32_t> reusable() const { return std::span(tokens).first(scoring() ? 0 : tokens.size()); }
};

struct Sequence : SequenceState {
  SequenceBlocks blocks;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
