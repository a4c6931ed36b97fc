#include "runtime/core/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime/core/concat.h"
#include "runtime/core/error.h"

namespace tensorwright {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Arena::Arena(size_t bytes, const char* purpose) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto fail = [&](const char* reason) {
    throw Error("OutOfMemoryError", concat("cannot get ", bytes, " bytes for ", purpose, " (", reason,
                                           "); lower the limits the engine is loaded with"));
  };
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - 2 * kHugePage) fail("too many");
  // Small arenas do not fill a huge page, so they are not aligned to one.
  const size_t align = bytes >= kHugePage ? kHugePage : 4096;
  const size_t size = (bytes + align - 1) / align * align;
  void* mapped =
      mmap(nullptr, size + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail(std::strerror(errno));
  // Give back what lies before and after the aligned part.
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (begin + align - 1) / align * align;
  if (aligned > begin) munmap(mapped, aligned - begin);
  const size_t tail = begin + size + align - (aligned + size);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size), tail);
  data_ = reinterpret_cast<char*>(aligned);
  mapped_bytes_ = size;
  madvise(data_, size, MADV_HUGEPAGE);  // a wish: kernels without huge pages refuse it and nothing is lost
}

Arena::~Arena() {
  if (data_) munmap(data_, mapped_bytes_);
}

}  // namespace tensorwright
