// Reads all that the prefix cache and its tiers remember, page by page, for those who follow its events
// (cache/cache_log.h): in the form of events that store blocks. Events may come between two pages; whoever
// applies those behind the number at which the first page was read knows the content as it is then.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CACHE_CONTENT_H_
#define TENSORWRIGHT_RUNTIME_CORE_CACHE_CONTENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/cache/cache_log.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/tiers/block_tiers.h"

namespace tensorwright {

// Where the next page begins.
struct ContentPlace {
  // The KV cache comes first, and then the parts of the tiers, in the order in which blocks pass them.
  enum Stage : int32_t { kCache, kHeld, kLeaving, kDisk, kEnd };
  int32_t stage = kCache;
  uint64_t number = 0;  // of the last node that was read, in the KV cache
  BucketPlace buckets;  // in a part of the tiers
};

// Returns the next page of one stage, of about `limit` blocks, and moves `place` behind it. For kCache
// nothing may change the cache meanwhile; the other stages may be read by any thread. tiers: null if there
// are none.
std::vector<CacheEvent> read_content(const KvBlocks& kv, const BlockTiers* tiers, ContentPlace* place,
                                     size_t limit);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CACHE_CONTENT_H_
