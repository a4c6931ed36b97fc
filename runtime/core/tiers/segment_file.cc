#include "runtime/core/tiers/segment_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "runtime/core/base/checksum.h"
#include "runtime/core/base/concat.h"

namespace tensorwright {

namespace {

static_assert(std::endian::native == std::endian::little, "the records are written as they lie in memory");

constexpr char kMagic[8] = {'T', 'W', 'K', 'V', 'S', 'E', 'G', '1'};

struct FileHeader {
  char magic[8];
  uint64_t owner_high, owner_low;
  uint32_t blocks, zero;
  uint64_t records_sum, header_sum;
};
static_assert(sizeof(FileHeader) == 48);

struct FileRecord {
  uint64_t high, low;
  int32_t group, priority;
  uint64_t offset, bytes, sum;
};
static_assert(sizeof(FileRecord) == 48);

template <typename T>
std::span<const char> bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

uint64_t header_sum(const FileHeader& header) {
  return checksum(bytes_of(header).first(sizeof header - sizeof header.header_sum));
}

uint64_t block_sum(const BlockId& id, std::span<const char> content) {
  return checksum(content, id.key.low ^ static_cast<uint64_t>(id.group));
}

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), concat(path, " cannot be ", what));
}

// An open file that closes itself.
class SegmentHandle {
 public:
  SegmentHandle(const std::string& path, int flags, const char* what)
      : file_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    if (file_ < 0) fail(what, path);
  }
  ~SegmentHandle() { close(file_); }
  SegmentHandle(const SegmentHandle&) = delete;
  SegmentHandle& operator=(const SegmentHandle&) = delete;
  int get() const { return file_; }

 private:
  const int file_;
};

void write_all(int file, const std::string& path, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written", path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void read_all(int file, const std::string& path, std::span<char> out, uint64_t offset) {
  while (!out.empty()) {
    const ssize_t got = pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path);
    if (got == 0) throw std::runtime_error(concat(path, " ends ", out.size(), " bytes too early"));
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

void check_record(const FileRecord& record, uint64_t file_bytes, uint64_t data,
                  std::span<const int64_t> block_bytes, const std::string& path) {
  const bool known = record.group >= 0 && static_cast<size_t>(record.group) < block_bytes.size() &&
                     record.bytes == static_cast<uint64_t>(block_bytes[static_cast<size_t>(record.group)]);
  if (!known)
    throw std::runtime_error(concat(path, " has a block of ", record.bytes, " bytes of group ", record.group,
                                    ", which the engine has not"));
  if (record.offset < data || record.offset > file_bytes || record.bytes > file_bytes - record.offset)
    throw std::runtime_error(concat(path, " has ", file_bytes, " bytes and a block at ", record.offset,
                                    " of ", record.bytes, " bytes; it was cut off"));
}

}  // namespace

int64_t segment_bytes(std::span<const StoredBlock> blocks) {
  auto bytes = static_cast<int64_t>(sizeof(FileHeader) + blocks.size() * sizeof(FileRecord));
  for (const StoredBlock& block : blocks) bytes += block.bytes;
  return bytes;
}

SegmentIndex write_segment(const std::string& path, const ArchiveKey& owner,
                           std::span<const StoredBlock> blocks) {
  SegmentIndex index;
  std::vector<FileRecord> records;
  uint64_t offset = sizeof(FileHeader) + blocks.size() * sizeof(FileRecord);
  for (const StoredBlock& block : blocks) {
    const auto bytes = static_cast<uint64_t>(block.bytes);
    const uint64_t sum = block_sum(block.id, {block.content.get(), static_cast<size_t>(bytes)});
    records.push_back(
        {block.id.key.high, block.id.key.low, block.id.group, block.priority, offset, bytes, sum});
    index.records.push_back({block.id, block.priority, offset, bytes, sum});
    offset += bytes;
  }
  index.file_bytes = static_cast<int64_t>(offset);
  const std::span<const char> table(reinterpret_cast<const char*>(records.data()),
                                    records.size() * sizeof(FileRecord));
  FileHeader header{{}, owner.high, owner.low, static_cast<uint32_t>(blocks.size()), 0, checksum(table), 0};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.header_sum = header_sum(header);
  const std::string part = path + kUnfinishedEnding, whole = path + kSegmentEnding;
  try {
    const SegmentHandle file(part, O_WRONLY | O_CREAT | O_TRUNC, "made");
    write_all(file.get(), part, bytes_of(header));
    write_all(file.get(), part, table);
    for (const StoredBlock& block : blocks)
      write_all(file.get(), part, {block.content.get(), static_cast<size_t>(block.bytes)});
    struct stat status;
    if (fstat(file.get(), &status) != 0) fail("read", part);
    index.last_use = status.st_mtime;
    if (rename(part.c_str(), whole.c_str()) != 0) fail("renamed", part);
  } catch (...) {
    unlink(part.c_str());
    throw;
  }
  return index;
}

SegmentIndex read_index(const std::string& path, const ArchiveKey& owner,
                        std::span<const int64_t> block_bytes) {
  const SegmentHandle file(path, O_RDONLY, "opened");
  struct stat status;
  if (fstat(file.get(), &status) != 0) fail("read", path);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path + " is no regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  FileHeader header;
  read_all(file.get(), path, {reinterpret_cast<char*>(&header), sizeof header}, 0);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    throw std::runtime_error(path + " is no file of blocks, or one of another version");
  if (header.header_sum != header_sum(header) || header.zero != 0 || header.blocks > kMaxSegmentBlocks)
    throw std::runtime_error(path + " has a damaged header");
  if (header.owner_high != owner.high || header.owner_low != owner.low)
    throw std::runtime_error(path + " is of another engine");
  std::vector<FileRecord> records(header.blocks);
  const std::span<char> table(reinterpret_cast<char*>(records.data()), records.size() * sizeof(FileRecord));
  read_all(file.get(), path, table, sizeof header);
  if (checksum(table) != header.records_sum) throw std::runtime_error(path + " has damaged records");
  SegmentIndex index;
  index.file_bytes = status.st_size;
  index.last_use = status.st_mtime;
  for (const FileRecord& record : records) {
    check_record(record, size, sizeof header + table.size(), block_bytes, path);
    index.records.push_back({{{record.high, record.low}, record.group},
                             record.priority,
                             record.offset,
                             record.bytes,
                             record.sum});
  }
  return index;
}

void read_stored(const std::string& path, const SegmentRecord& record, std::span<char> out) {
  if (out.size() != record.bytes) throw std::logic_error("[tiers] a block is read into as many bytes");
  const SegmentHandle file(path, O_RDONLY, "opened");
  read_all(file.get(), path, out, record.offset);
  if (block_sum(record.id, out) != record.sum)
    throw std::runtime_error(concat(path, " has a damaged block at ", record.offset));
}

void touch_segment(const std::string& path) {
  utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // without it the file only looks older
}

}  // namespace tensorwright
