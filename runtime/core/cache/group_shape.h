// Says how many blocks a cache group has, and how many of them one sequence holds at most.
//
// A group with a window may have sink tokens too: the first positions of a sequence, which every position
// sees besides its window (StreamingLLM, arXiv 2309.17453). Their blocks stay as long as the sequence does.
#ifndef TENSORWRIGHT_RUNTIME_CORE_GROUP_SHAPE_H_
#define TENSORWRIGHT_RUNTIME_CORE_GROUP_SHAPE_H_

#include <algorithm>
#include <cstdint>

#include "runtime/core/base/first_seen.h"

namespace tensorwright {

// Returns how many blocks a sequence holds in a group with this window while it writes `chunk` positions: the
// blocks that the first of these positions sees and those of the chunk, and one more, because neither end
// need lie at the end of a block. If the window is chunked, a sequence holds as many at most.
constexpr int64_t window_blocks(int64_t window, int64_t chunk, int64_t block_size) {
  return (window - 1 + chunk + block_size - 1) / block_size + 1;
}

struct GroupShape {
  int32_t blocks = 0;
  int32_t window = 0;       // 0: none
  int32_t max_held = 0;     // by one sequence; 0: no bound but its length
  bool chunked = false;     // the window begins at a multiple of its length
  int32_t sink_tokens = 0;  // only with a window that slides
  // Blocks that a sequence keeps where the executor says which it forgets (Executor::gone_blocks): at each
  // multiple of `interval` positions. 0: no bound; then it has no window.
  int32_t kept = 0;
  int32_t interval = 0;

  // Returns how many blocks a sequence holds at most before it forgets some again; 0: no bound.
  int32_t kept_at_most(int32_t block_size) const { return kept > 0 ? kept + interval / block_size : 0; }

  // Returns how many leading blocks of a sequence hold sink tokens.
  int32_t sink_blocks(int32_t block_size) const { return (sink_tokens + block_size - 1) / block_size; }

  // Returns the first position that `position` sees, sink tokens aside.
  int32_t first_seen(int32_t position) const {
    return static_cast<int32_t>(tw_first_seen(position, window, chunked));
  }

  // Returns how many blocks n sequences need at once to go on. Each sequence has `entries` entries, and all
  // share the blocks of the first `shared` ones.
  int64_t needed(int64_t n, int64_t shared, int64_t entries, int64_t block_size) const {
    int64_t all = shared + n * (entries - shared);
    if (kept > 0) return std::min(all, n * kept_at_most(static_cast<int32_t>(block_size)));
    if (window == 0) return all;
    const int64_t sinks = sink_blocks(static_cast<int32_t>(block_size));
    return std::min(all, n * (sinks + window_blocks(window, 1, block_size)));
  }
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_GROUP_SHAPE_H_
