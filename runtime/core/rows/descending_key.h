// Makes keys whose ascending order is the order in which top_p counts tokens.
#ifndef TENSORWRIGHT_RUNTIME_CORE_DESCENDING_KEY_H_
#define TENSORWRIGHT_RUNTIME_CORE_DESCENDING_KEY_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tensorwright {

// Ascending keys have descending scores; of equal scores, the higher index comes first. -0 and 0 are equal.
inline uint64_t descending_key(float score, uint32_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | ~index;
}

inline size_t key_index(uint64_t key) { return ~static_cast<uint32_t>(key); }

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_DESCENDING_KEY_H_
