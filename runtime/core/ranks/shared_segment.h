// A file of shared memory through which the ranks of one machine talk: a ring of bytes from each rank to each
// other, and a bell for each rank, which others ring when there is something new for it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_SEGMENT_H_
#define TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tensorwright {

// A ring of bytes with one writer and one reader. Positions count bytes since the beginning.
struct SharedRing {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  uint64_t offset;  // of the bytes in the segment
};

// Rung by adding 1. Who waits says so, so that others wake it.
struct SharedBell {
  alignas(64) std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleeping;
};

class SharedSegment {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kTextBytes = 1024;

  // Makes the file, which must not exist, for so many ranks. Throws Error{"InvalidOptionError"} for a number
  // of ranks that is out of range, Error{"OutOfMemoryError"} if there is no memory for it.
  static void create(const std::string& path, int ranks);
  // Maps the file. Throws Error{"EngineError"} if it is none, or is of other sizes.
  explicit SharedSegment(const std::string& path);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  int ranks() const;
  SharedRing& ring(int from, int to) const;
  SharedBell& bell(int rank) const;
  char* bytes(const SharedRing& ring) const { return base_ + ring.offset; }
  size_t capacity() const;  // bytes of a ring, a power of two

  void ring_bell(int rank) const;
  // Returns when the bell has been rung since `seen`, or after some milliseconds.
  void wait_for_bell(int rank, uint32_t seen, int milliseconds) const;

  // Says why the ranks can go on no more. The first text stays.
  void fail(const std::string& why) const noexcept;
  // Returns that text; empty while there is none.
  std::string failure() const;

 private:
  struct Header;

  char* base_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_SEGMENT_H_
