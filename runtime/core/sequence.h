// One completion of a request while it lives: its tokens, how far the cache has them, and the blocks they are
// in.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
#define TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/core/kv_blocks.h"
#include "runtime/core/request.h"

namespace tensorwright {

using Clock = std::chrono::steady_clock;

// All but the blocks, which are counted and so not copied.
struct SequenceState {
  int64_t id = 0;               // of the request
  int32_t completion = 0;       // which of the request's
  int32_t forks = 0;            // completions that fork off this one once its prompt is computed
  uint64_t arrival = 0;         // order of submission; the scheduler sets it
  std::vector<int32_t> tokens;  // [prompt + generated]
  int32_t prompt_tokens = 0;
  Sampling sampling;
  uint64_t seed = 0;

  int32_t computed = 0;              // leading tokens whose keys and values are in the cache
  int32_t tokens_when_admitted = 0;  // more by now: it got somewhere since its last (re)start
  int32_t cached_tokens = -1;        // prompt tokens the prefix cache had at the first start; -1: not started

  Clock::time_point arrived;
  Clock::time_point deadline = Clock::time_point::max();
  double queue_s = -1, first_token_s = -1;

  // The order in which sequences start, and the reverse of that in which they are preempted.
  bool before(const SequenceState& other) const {
    if (sampling.priority != other.sampling.priority) return sampling.priority > other.sampling.priority;
    return arrival != other.arrival ? arrival < other.arrival : completion < other.completion;
  }
  // Of max_seqs: those of its forks are kept free for them.
  int32_t places() const { return 1 + forks; }
  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t generated() const { return size() - prompt_tokens; }
  // Tokens to compute before the next one can be sampled: 1 while decoding.
  int32_t pending() const { return size() - computed; }
};

struct Sequence : SequenceState {
  SequenceBlocks blocks;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
