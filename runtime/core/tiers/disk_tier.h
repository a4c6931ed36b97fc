// Keeps blocks of the KV cache in files (segment_file.h), so that they outlive the process.
//
// The files of an engine lie in a folder of its own below the directory that the user names. The folder's
// name is the keyed hash of the engine's identity: another build, or other kernels, or another secret, never
// look into it. A lock keeps a second process out. What lies in folders that nobody has locked counts towards
// the size that the user allows, and is removed first.
//
// A file goes as a whole: the one of the lowest priority that was used longest ago. What cannot be read, or
// is not what was written, is dropped, counted and told; no request fails for it. When a file cannot be
// written, the blocks are dropped, and for kRetrySeconds none is tried.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DISK_TIER_H_
#define TENSORWRIGHT_RUNTIME_CORE_DISK_TIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/cache/cache_log.h"
#include "runtime/core/tiers/bucket_pages.h"
#include "runtime/core/tiers/notices.h"
#include "runtime/core/tiers/segment_file.h"
#include "runtime/core/tiers/stored_block.h"

namespace tensorwright {

struct DiskTierStats {
  int64_t bytes = 0, blocks = 0, files = 0;  // at present
  int64_t written_bytes = 0, read_bytes = 0;
  int64_t evicted = 0;        // blocks that gave way to others, or were not used for the time to live
  int64_t dropped = 0;        // damaged files and blocks
  int64_t failed_writes = 0;  // blocks that could not be written
};

class DiskTier {
 public:
  static constexpr int64_t kRetrySeconds = 60;
  // The most files: many small ones must not make the directory slow.
  static constexpr size_t kMaxFiles = 4096;

  // directory: is made if it is missing. limit: the bytes of all files. ttl_s: the seconds after its last use
  // in which a file is kept; 0: no limit. log: is told of each block that is stored or removed; null: nobody
  // is. Throws Error{"InvalidOptionError"} if the folder cannot be used, or another process uses it.
  DiskTier(const std::string& directory, int64_t limit, double ttl_s, const ArchiveKey& owner,
           std::vector<int64_t> block_bytes, Notices& notices, CacheLog* log = nullptr);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // Any thread may call these; a write and sweep() only one at a time. No file is touched while the lock is
  // held.
  bool has(const BlockId& id) const;
  // Reads a block. Returns false if there is none, or none that is whole.
  bool read(const BlockId& id, std::span<char> out);
  // Writes the blocks that are not there yet, as one file. Returns false if they are lost.
  bool write(std::vector<StoredBlock> blocks);
  // Removes the files that were not used for the time to live.
  void sweep();
  DiskTierStats stats() const;
  // As tensorwright::visit_page, of the blocks in all files.
  bool visit_page(BucketPlace* place, size_t limit, const std::function<void(const BlockId&)>& visit) const;
  // Lets another process have the folder. Only stats() may be called afterwards.
  void unlock();

 private:
  struct DiskFile {
    int64_t bytes = 0;
    int64_t last_use = 0;  // seconds since 1970
    int32_t priority = 0;  // the highest of its blocks
    std::vector<BlockId> blocks;
  };
  struct DiskPlace {
    uint64_t file;
    SegmentRecord record;
  };
  // A folder that another engine has left.
  struct Stranger {
    std::string path;
    int64_t bytes, last_use;
  };

  void lock_folder(const std::string& directory);
  void open_files();
  void find_strangers(const std::string& directory);
  void note(uint64_t number, const SegmentIndex& index);
  void tell(bool stored, const BlockId& id) const noexcept;
  std::string path_of(uint64_t number) const;
  bool is_over(int64_t more) const;
  void make_room(int64_t bytes);
  bool remove_stranger();
  std::vector<BlockId> forget_file(uint64_t number);
  void drop(uint64_t number, const BlockId& id, const std::string& why);
  bool fails_now() const;
  bool is_old(const DiskFile& file, int64_t now) const;

  const int64_t limit_;
  const double ttl_s_;
  const ArchiveKey owner_;
  const std::vector<int64_t> block_bytes_;
  Notices& notices_;
  CacheLog* const log_;
  std::string folder_;
  int lock_file_ = -1;
  std::vector<Stranger> strangers_;  // the oldest last; only the writer uses it

  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, DiskFile> files_;
  std::unordered_map<BlockId, DiskPlace, BlockIdHash> places_;
  int64_t bytes_ = 0;
  int64_t stranger_bytes_ = 0;
  uint64_t numbers_ = 0;
  int64_t failed_at_ = -1;  // when a file could last not be written; -1: never
  bool told_of_failure_ = false;
  DiskTierStats stats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DISK_TIER_H_
