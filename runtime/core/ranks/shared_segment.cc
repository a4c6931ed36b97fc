#include "runtime/core/ranks/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {
namespace {

constexpr char kMagic[8] = {'T', 'W', 'R', 'A', 'N', 'K', 'S', '1'};
constexpr size_t kPage = 4096;
// All rings together take at most so many bytes; one has 64 KiB to 1 MiB.
constexpr size_t kMostBytes = size_t{64} << 20;

enum Failed : uint32_t { kNo = 0, kWriting = 1, kYes = 2 };

size_t ring_bytes(int ranks) {
  const auto pairs = static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
  size_t bytes = size_t{1} << 20;
  while (bytes > (size_t{1} << 16) && bytes * pairs > kMostBytes) bytes /= 2;
  return bytes;
}

size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Takes the memory of a file now: a write to a page that the system cannot give ends a process. Returns the
// number of the error, or 0.
int take_memory(int file, size_t bytes) {
#if defined(__linux__)
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
#else
  return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;  // the pages come when they are written
#endif
}

// Wakes whoever sleeps until a count changes.
void wake_sleepers(std::atomic<uint32_t>& count) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)count;  // sleep_while() looks by itself
#endif
}

// Sleeps while a count is `seen`, for so many milliseconds at most. It may return early.
void sleep_while(std::atomic<uint32_t>& count, uint32_t seen, int milliseconds) {
#if defined(__linux__)
  const timespec time{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  // Returns at once if the count has changed; a signal or the end of the time is no fault either.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAIT, seen, &time, nullptr, 0);
#else
  if (count.load() == seen && milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
#endif
}

size_t pairs_of(int ranks) { return static_cast<size_t>(ranks) * static_cast<size_t>(ranks); }

}  // namespace

struct SharedSegment::Header {
  char magic[8];
  uint32_t ranks;
  uint32_t capacity;
  std::atomic<uint32_t> failed;  // Failed
  char text[kTextBytes];
  SharedBell bells[kMostRanks];
  // Then the rings, by writer and reader, and their bytes.
};

namespace {

size_t header_bytes(size_t header, int ranks) {
  return round_up(header + pairs_of(ranks) * sizeof(SharedRing));
}

}  // namespace

void SharedSegment::create(const std::string& path, int ranks) {
  if (ranks < 2 || ranks > kMostRanks) {
    throw Error("InvalidOptionError",
                concat("[ranks] there must be 2 to ", int{kMostRanks}, " ranks on one machine, not ", ranks));
  }
  const size_t first = header_bytes(sizeof(Header), ranks),
               bytes = first + pairs_of(ranks) * ring_bytes(ranks);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0)
    throw Error("EngineError", concat("[ranks] ", path, " cannot be made: ", std::strerror(errno)));
  const int refused = take_memory(file, bytes);
  void* memory = refused ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
    throw Error("OutOfMemoryError", concat("[ranks] ", bytes, " bytes of shared memory at ", path,
                                           " cannot be had: ", std::strerror(refused ? refused : errno)));
  }
  auto* header = new (memory) Header{};
  header->ranks = static_cast<uint32_t>(ranks);
  header->capacity = static_cast<uint32_t>(ring_bytes(ranks));
  auto* rings = reinterpret_cast<SharedRing*>(static_cast<char*>(memory) + sizeof(Header));
  for (size_t i = 0; i < pairs_of(ranks); ++i) {
    auto* ring = new (rings + i) SharedRing{};
    ring->offset = first + i * ring_bytes(ranks);
  }
  std::memcpy(header->magic, kMagic, sizeof(kMagic));
  munmap(memory, bytes);
}

SharedSegment::SharedSegment(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error("EngineError", concat("[ranks] ", path, why, "; start the ranks again"));
  };
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) refuse(concat(" cannot be opened: ", std::strerror(errno)));
  struct stat facts{};
  const bool large = fstat(file, &facts) == 0 && static_cast<size_t>(facts.st_size) >= sizeof(Header);
  mapped_ = large ? static_cast<size_t>(facts.st_size) : 0;
  void* memory = large ? mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) refuse(" is no shared memory of ranks");
  base_ = static_cast<char*>(memory);
  const auto* header = reinterpret_cast<const Header*>(base_);
  const auto ranks = static_cast<int>(std::min(header->ranks, 1000u));
  const bool sound = std::memcmp(header->magic, kMagic, sizeof(kMagic)) == 0 && ranks >= 2 &&
                     ranks <= kMostRanks && header->capacity == ring_bytes(ranks) &&
                     mapped_ == header_bytes(sizeof(Header), ranks) + pairs_of(ranks) * ring_bytes(ranks);
  if (!sound) {
    munmap(base_, mapped_);
    refuse(" is no shared memory of ranks");
  }
}

SharedSegment::~SharedSegment() { munmap(base_, mapped_); }

int SharedSegment::ranks() const { return static_cast<int>(reinterpret_cast<const Header*>(base_)->ranks); }

size_t SharedSegment::capacity() const { return ring_bytes(ranks()); }

SharedRing& SharedSegment::ring(int from, int to) const {
  auto* rings = reinterpret_cast<SharedRing*>(base_ + sizeof(Header));
  return rings[static_cast<size_t>(from) * static_cast<size_t>(ranks()) + static_cast<size_t>(to)];
}

SharedBell& SharedSegment::bell(int rank) const {
  return reinterpret_cast<Header*>(base_)->bells[static_cast<size_t>(rank)];
}

void SharedSegment::ring_bell(int rank) const {
  SharedBell& bell = this->bell(rank);
  bell.count.fetch_add(1);
  if (bell.sleeping.load() != 0) wake_sleepers(bell.count);
}

void SharedSegment::wait_for_bell(int rank, uint32_t seen, int milliseconds) const {
  SharedBell& bell = this->bell(rank);
  bell.sleeping.store(1);
  sleep_while(bell.count, seen, milliseconds);
  bell.sleeping.store(0);
}

void SharedSegment::fail(const std::string& why) const noexcept {
  auto* header = reinterpret_cast<Header*>(base_);
  uint32_t expected = kNo;
  if (header->failed.compare_exchange_strong(expected, kWriting)) {
    const size_t length = std::min(why.size(), kTextBytes - 1);
    std::memcpy(header->text, why.data(), length);
    header->text[length] = 0;
    header->failed.store(kYes);
  }
  for (int rank = 0; rank < ranks(); ++rank) ring_bell(rank);
}

std::string SharedSegment::failure() const {
  const auto* header = reinterpret_cast<const Header*>(base_);
  if (header->failed.load() != kYes) return {};
  return {header->text, strnlen(header->text, kTextBytes)};
}

}  // namespace tensorwright
