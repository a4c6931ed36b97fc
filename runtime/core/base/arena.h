// Zeroed anonymous memory, aligned for huge pages and asking for them.
//
// In debug builds pages that fault lie before and behind it, and it ends (but for its alignment, to 64 bytes,
// which AddressSanitizer watches) where the one behind begins: who runs out of it is stopped there, not in
// the next arena.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ARENA_H_
#define TENSORWRIGHT_RUNTIME_CORE_ARENA_H_

#include <cstddef>
#include <utility>

namespace tensorwright {

class Arena {
 public:
  Arena() = default;
  // Throws Error{"OutOfMemoryError"} that says what the memory was for.
  Arena(size_t bytes, const char* purpose);
  ~Arena();
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // A write to it from now on faults where it happens, if the system can do that.
  void make_read_only();

 private:
  void swap(Arena& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  char* data_ = nullptr;
  size_t bytes_ = 0;
  char* mapped_ = nullptr;  // the pages that faults are taken in are a part of it
  size_t mapped_bytes_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ARENA_H_
