// Computes XXH64 (Collet, "xxHash fast digest algorithm"), which tells bytes that were altered by accident.
// It is no defence against whoever alters them on purpose.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CHECKSUM_H_
#define TENSORWRIGHT_RUNTIME_CORE_CHECKSUM_H_

#include <cstdint>
#include <span>

namespace tensorwright {

uint64_t checksum(std::span<const char> bytes, uint64_t seed = 0);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CHECKSUM_H_
