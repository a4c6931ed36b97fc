// Reads and writes one file of blocks of the KV cache.
//
//   offset 0   "TWKVSEG1"
//          8   the owner: two uint64, the keyed name of the engine whose blocks these are
//         24   uint32 number of blocks, uint32 zero
//         32   uint64 checksum of the records; 40: uint64 checksum of bytes 0 to 39
//         48   a record of 48 bytes for each block: key (two uint64), group and priority (int32 each),
//         offset, bytes
//              and checksum (uint64 each)
//              then the blocks' bytes, one behind the other
//
// Numbers are little-endian. A block's checksum begins from its key and group, so a block that stands where
// another should is found out too. The file is written under another name and renamed, so a name that ends in
// kSegmentEnding belongs to a whole file, unless the machine lost power meanwhile; then the checksums tell.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SEGMENT_FILE_H_
#define TENSORWRIGHT_RUNTIME_CORE_SEGMENT_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/tiers/stored_block.h"

namespace tensorwright {

inline constexpr const char* kSegmentEnding = ".kv";
inline constexpr const char* kUnfinishedEnding = ".part";
// The most blocks of a file.
inline constexpr uint32_t kMaxSegmentBlocks = 1u << 16;

struct SegmentRecord {
  BlockId id;
  int32_t priority = 0;
  uint64_t offset = 0, bytes = 0, sum = 0;
};

struct SegmentIndex {
  std::vector<SegmentRecord> records;
  int64_t file_bytes = 0;
  int64_t last_use = 0;  // the file's time, in seconds since 1970
};

// Returns the bytes of a file of these blocks.
int64_t segment_bytes(std::span<const StoredBlock> blocks);
// Writes the file path + kSegmentEnding. Throws std::system_error, and then leaves no file.
SegmentIndex write_segment(const std::string& path, const ArchiveKey& owner,
                           std::span<const StoredBlock> blocks);
// Reads the records of a file. Throws std::runtime_error, which says what is wrong, unless it is a whole file
// of this owner whose blocks have the sizes of their groups. block_bytes: by cache group.
SegmentIndex read_index(const std::string& path, const ArchiveKey& owner,
                        std::span<const int64_t> block_bytes);
// Reads the bytes of a block into `out`, which must have as many. Throws std::runtime_error if they cannot be
// read, or are not those that were written.
void read_stored(const std::string& path, const SegmentRecord& record, std::span<char> out);
// Notes that a block of the file was used now.
void touch_segment(const std::string& path);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SEGMENT_FILE_H_
