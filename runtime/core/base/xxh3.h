// Computes XXH3 with 128 bits (Collet, "xxHash fast digest algorithm"), by which an engine's checksums.txt
// knows its files. It is no defence against whoever alters them on purpose.
#ifndef TENSORWRIGHT_RUNTIME_CORE_XXH3_H_
#define TENSORWRIGHT_RUNTIME_CORE_XXH3_H_

#include <span>
#include <string>

namespace tensorwright {

// Returns the hash with seed 0 and the standard secret as 32 hexadecimal digits, the higher half first.
std::string xxh3_128_hex(std::span<const char> bytes);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_XXH3_H_
