// Says which positions attention sees: for the kernels, for the checks of steps, and for the cache, which
// frees the blocks before them. Only C, because files of an instruction set include it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BASE_FIRST_SEEN_H_
#define TENSORWRIGHT_RUNTIME_CORE_BASE_FIRST_SEEN_H_

#include <stdint.h>

// The most sink tokens of a layer: first positions of a sequence that every position sees besides its window.
// They lie in one split of attention (plugins/paged_attention/kernel.h).
enum { TW_MAX_SINK_TOKENS = 512 };

// Returns the first position that `position` sees, sink tokens aside; it sees all from there to itself.
// window: 0 means all
// positions. A window slides: it holds the last `window` positions. If it is chunked, it begins at a multiple
// of `window` instead and is full at the next one. The result never falls as the position grows.
static inline int64_t tw_first_seen(int64_t position, int64_t window, int32_t chunked) {
  if (window <= 0) return 0;
  if (chunked) return position - position % window;
  return position >= window ? position - window + 1 : 0;
}

#endif  // TENSORWRIGHT_RUNTIME_CORE_BASE_FIRST_SEEN_H_
