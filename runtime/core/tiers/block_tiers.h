// Keeps blocks that the KV cache forgets: first in memory, then on disk (disk_tier.h), as far as there are
// such tiers.
//
// A block is named by the keyed hash of its salt and of all tokens up to its end, so nobody finds a block of
// another salt. In memory, blocks of the lowest priority that were used longest ago give way first. They go
// to the disk by a thread of their own; blocks on their way stay in memory, and are found there. If more are
// on their way than kMaxLeaving bytes, further ones are dropped: nobody waits for the disk, except close().
#ifndef TENSORWRIGHT_RUNTIME_CORE_BLOCK_TIERS_H_
#define TENSORWRIGHT_RUNTIME_CORE_BLOCK_TIERS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/cache/cache_log.h"
#include "runtime/core/cache/secret_hash.h"
#include "runtime/core/tiers/bucket_pages.h"
#include "runtime/core/tiers/disk_tier.h"
#include "runtime/core/tiers/notices.h"
#include "runtime/core/tiers/stored_block.h"

namespace tensorwright {

struct TierOptions {
  int64_t memory_bytes = 0;  // 0: no tier in memory
  std::string disk;          // a directory; empty: no tier on disk
  int64_t disk_bytes = 0;
  double ttl_s = 0;      // the seconds after its last use in which a block is kept; 0: no limit
  std::string secret;    // ArchiveHash::kSecretBytes bytes
  std::string identity;  // says which engines compute the same bits
  bool enabled() const { return memory_bytes > 0 || !disk.empty(); }
};

struct TierStats {
  int64_t memory_bytes = 0, memory_blocks = 0;  // at present, with those on their way to the disk
  int64_t memory_hits = 0, disk_hits = 0;       // blocks that were read back
  int64_t memory_evicted = 0;                   // blocks that left the memory, for the disk or for good
  int64_t lost = 0;  // blocks that were kept nowhere: no memory, or too many on their way
  DiskTierStats disk;
};

class BlockTiers {
 public:
  static constexpr int64_t kMaxLeaving = int64_t{256} << 20;
  static constexpr int64_t kFileBytes = int64_t{64}
                                        << 20;  // the most bytes of a file, unless one block has more
  static constexpr int64_t kBatchBytes = int64_t{16} << 20;
  static constexpr double kBatchSeconds = 1;  // blocks wait so long for company in their file

  // The parts of the tiers that visit_page() goes through, in the order in which blocks pass them.
  enum class Part { kHeld, kLeaving, kDisk };

  // block_bytes: by cache group. log: is told of each block that a tier stores or removes; null: nobody is.
  // Throws Error{"InvalidOptionError"}, as DiskTier does.
  BlockTiers(const TierOptions& options, const std::vector<int64_t>& block_bytes, CacheLog* log = nullptr);
  ~BlockTiers() { end(); }  // what is not written is lost
  BlockTiers(const BlockTiers&) = delete;
  BlockTiers& operator=(const BlockTiers&) = delete;

  const ArchiveHash& hash() const { return hash_; }
  // Keeps a block. fill: copies it. If there is no memory, the block is lost.
  void put(const BlockId& id, int32_t priority, int64_t bytes,
           const std::function<void(char*)>& fill) noexcept;
  bool has(const BlockId& id) const;
  // As tensorwright::visit_page, of one part. A block that goes from one part to the next while the parts are
  // read in their order is on a page of one of them. Any thread may call it.
  bool visit_page(Part part, BucketPlace* place, size_t limit,
                  const std::function<void(const BlockId&)>& visit) const;
  // Reads a block back. Returns false if no tier has it, or none has it whole.
  bool read(const BlockId& id, std::span<char> out);

  // Of an engine that ends: save() sends a block to the disk, and waits while too many are on their way. It
  // returns false if `until` has come, or there is no disk. close() writes all that is left until then, and
  // tells of what it could not write.
  bool save(const BlockId& id, int32_t priority, int64_t bytes, const std::function<void(char*)>& fill,
            Clock::time_point until);
  void close(Clock::time_point until);
  // Stops the writer, and lets another engine have the directory. What is not written is lost.
  void end();

  TierStats stats() const;
  std::vector<std::string> take_notices() { return notices_.take(); }

 private:
  struct Held {
    StoredBlock block;
    std::list<BlockId>::iterator place;  // in lists_[block.priority]
    Clock::time_point last_use;
  };
  StoredBlock copy(const BlockId& id, int32_t priority, int64_t bytes,
                   const std::function<void(char*)>& fill) const;
  void keep(StoredBlock block);
  StoredBlock take_least();
  void tell(bool stored, const BlockId& id) const noexcept;
  bool leave(StoredBlock block) noexcept;
  void touch(Held& held);
  bool is_old(const Held& held) const;
  void sweep();
  void write_out();
  std::vector<StoredBlock> next_batch();
  std::shared_ptr<const char[]> find(const BlockId& id);

  const TierOptions options_;
  const ArchiveHash hash_;
  CacheLog* const log_;
  Notices notices_;
  std::unique_ptr<DiskTier> disk_;  // null: there is none

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, drained_;
  std::unordered_map<BlockId, Held, BlockIdHash> held_;
  std::map<int32_t, std::list<BlockId>>
      lists_;  // by priority; the block that was used longest ago is at the front
  int64_t held_bytes_ = 0;
  // The blocks on their way to the disk, in the order in which they go; those of the batch that is written
  // are still in leaving_, but not in order_.
  std::unordered_map<BlockId, StoredBlock, BlockIdHash> leaving_;
  std::deque<BlockId> order_;
  int64_t leaving_bytes_ = 0;
  Clock::time_point first_left_;  // when the first of order_ came
  bool closing_ = false, ended_ = false;
  TierStats stats_;
  std::thread writer_;  // only with a disk, or a time to live
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BLOCK_TIERS_H_
