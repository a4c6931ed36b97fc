#include "runtime/core/base/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/page.h"
#include "runtime/core/base/poison.h"

namespace tensorwright {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kLine = 64;
#ifdef NDEBUG
constexpr bool kGuarded = false;
#else
constexpr bool kGuarded = true;  // by a page on each side that nobody may touch
#endif

size_t guard_bytes() { return kGuarded ? page_bytes() : 0; }

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Marks what is no data in the pages from `begin` to `end`. It marks nothing else, because marks take an
// eighth of the memory that they cover.
void around(const char* begin, const char* data, size_t bytes, const char* end,
            void (*mark)(const void*, size_t)) {
  mark(begin, static_cast<size_t>(data - begin));
  mark(data + bytes, static_cast<size_t>(end - (data + bytes)));
}

}  // namespace

Arena::Arena(size_t bytes, const char* purpose) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto fail = [&](const char* reason) {
    throw Error("OutOfMemoryError", concat("cannot get ", bytes, " bytes for ", purpose, " (", reason,
                                           "); lower the limits the engine is loaded with"));
  };
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - 3 * kHugePage) fail("too many");
  // Small arenas do not fill a huge page, so they are not aligned to one.
  const size_t align = bytes >= kHugePage ? kHugePage : page_bytes(), guard = guard_bytes();
  const size_t size = round_up(bytes, align), room = size + align + 2 * guard;
  void* mapped =
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail(std::strerror(errno));
  // Give back the pages before and after the aligned part with its guards.
  char* begin = static_cast<char*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  char* aligned = begin + (round_up(address + guard, align) - address);
  mapped_ = aligned - guard;
  mapped_bytes_ = size + 2 * guard;
  if (mapped_ > begin) munmap(begin, static_cast<size_t>(mapped_ - begin));
  const auto tail = static_cast<size_t>(begin + room - (mapped_ + mapped_bytes_));
  if (tail > 0) munmap(mapped_ + mapped_bytes_, tail);
  data_ = kGuarded ? aligned + size - round_up(bytes, kLine) : aligned;
#ifdef MADV_HUGEPAGE
  madvise(aligned, size, MADV_HUGEPAGE);  // a hint: kernels without huge pages refuse it
#endif
  if (!kGuarded) return;
  mprotect(mapped_, guard, PROT_NONE);
  mprotect(aligned + size, guard, PROT_NONE);
  around(aligned, data_, bytes, aligned + size, poison);
}

void Arena::make_read_only() {
  if (mapped_) mprotect(mapped_ + guard_bytes(), mapped_bytes_ - 2 * guard_bytes(), PROT_READ);
}

Arena::~Arena() {
  if (!mapped_) return;
  if (kGuarded) {
    const size_t guard = guard_bytes();
    around(mapped_ + guard, data_, bytes_, mapped_ + mapped_bytes_ - guard, unpoison);
  }
  munmap(mapped_, mapped_bytes_);
}

}  // namespace tensorwright
