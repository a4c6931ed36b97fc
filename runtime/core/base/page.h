// The size of the system's pages: 4 KiB on x86-64, 4, 16 or 64 KiB on aarch64, as the system was built.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PAGE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PAGE_H_

#include <unistd.h>

#include <cstddef>

namespace tensorwright {

inline size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PAGE_H_
