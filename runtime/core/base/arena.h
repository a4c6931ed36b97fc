// Holds zeroed anonymous memory that is aligned for huge pages and asks the system for them.
//
// In debug builds, a page that faults lies before the arena, and another one behind it. The arena ends where
// the page behind it begins, but for its alignment to 64 bytes, which AddressSanitizer watches. So code that
// runs out of the arena is stopped there, and does not reach the next arena.
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
  // Makes every later write to the arena fault, where the system can do that.
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
  char* mapped_ = nullptr;  // the whole mapping, with the guard pages of debug builds
  size_t mapped_bytes_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ARENA_H_
