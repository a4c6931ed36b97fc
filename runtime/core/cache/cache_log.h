// Tells of each block that the prefix cache and its tiers store and remove, so that others can know what an
// engine remembers: routers, other caches, people who wonder why a prompt was computed.
//
// Every event has a number, one more than the event before it. The last `capacity` of them are kept for those
// who read. Who asks for events that are gone is told how many, and begins again with the whole content
// (engine/cache_content.h), which is read page by page while events go on: what is behind the number at which
// the pages began is told as events. An event says what became of one block in one tier, so it may be applied
// twice.
//
// While nobody reads, an event costs a lock and an increment: recording begins with the first read, and ends
// when as many events as are kept have come since the last one.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CACHE_LOG_H_
#define TENSORWRIGHT_RUNTIME_CORE_CACHE_LOG_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/core/cache/secret_hash.h"

namespace tensorwright {

enum class CacheTier : uint8_t { kCache, kMemory, kDisk };

// Whose a prefix is, in names that say nothing to those who lack the secret.
struct CacheOrigin {
  std::optional<ArchiveKey> salt;     // of the caller; empty: none
  std::optional<ArchiveKey> adapter;  // of the adapter's content; empty: the model alone
};

// Returns the name of a caller's salt, and of the content of an adapter with this key.
ArchiveKey salt_name(const ArchiveHash& hash, std::string_view salt);
ArchiveKey adapter_name(const ArchiveHash& hash, std::string_view key);
// salt: that of the request, as prefix_salt.h joins it.
CacheOrigin origin_of(const ArchiveHash& hash, std::string_view salt);

struct CacheEvent {
  int64_t number = 0;   // from 1 on
  bool stored = false;  // false: removed
  CacheTier tier = CacheTier::kCache;
  int32_t group = 0;  // the cache group
  ArchiveKey block;   // the name of the salt and of all tokens up to the block's end
  // The rest is said of blocks that are stored in the KV cache alone: tiers know no more than the name.
  std::optional<ArchiveKey> parent;  // empty: a first block
  CacheOrigin origin;
  std::vector<int32_t> tokens;  // [block_size]
};

class CacheLog {
 public:
  struct News {
    std::vector<CacheEvent> events;
    int64_t next = 0;  // the number of the last event of these, or of the last one of all if some are lost
    int64_t lost = 0;  // events behind `after` that are not told
  };

  // capacity: the events that are kept. block_size: the tokens of a block.
  CacheLog(size_t capacity, int32_t block_size);

  // Drawn for each log, so that nobody takes the numbers of one engine for those of another.
  uint64_t epoch() const { return epoch_; }

  // The caller holds what guards the tier's books, so that the events of a block come in their order.
  void add(bool stored, CacheTier tier, int32_t group, const ArchiveKey& block) noexcept;
  void add_stored(int32_t group, const ArchiveKey& block, const std::optional<ArchiveKey>& parent,
                  const CacheOrigin& origin, std::span<const int32_t> tokens) noexcept;

  // Any thread may call the rest.
  // Returns the number of the last event. Those behind it are kept from now on.
  int64_t begin();
  // Returns at most `limit` events behind number `after`; if some of those are gone, none. Waits up to
  // `timeout_s` for the first. Throws Error{"InvalidRequestError"} for a number that is still to come.
  News read(int64_t after, size_t limit, double timeout_s);

 private:
  CacheEvent* next_place() noexcept;
  void make_ring();
  void record();

  const size_t capacity_;
  const size_t block_size_;
  const uint64_t epoch_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable news_;
  int waiting_ = 0;
  std::atomic<bool> has_ring_ = false;
  std::vector<CacheEvent> ring_;  // [capacity]: event n lies at n % capacity; empty: never recorded
  bool recording_ = false;
  int64_t first_ = 1;    // the first event of the recording
  int64_t last_ = 0;     // the number of the last event, recorded or not
  int64_t read_at_ = 0;  // last_, when somebody read
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CACHE_LOG_H_
