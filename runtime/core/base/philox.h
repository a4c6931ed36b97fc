// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): random numbers as a pure
// function of key and counter. The generator has no state, so what a request draws depends on its seed and
// position alone.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PHILOX_H_
#define TENSORWRIGHT_RUNTIME_CORE_PHILOX_H_

#include <array>
#include <cstdint>

namespace tensorwright {

inline std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// What a number is drawn for. Each purpose has numbers of its own at every position.
enum class Draws : uint32_t { kToken, kXtcCoin };

// Returns a uniform number in [0, 1) with 53 bits: the one that a request with this seed draws for the token
// at this position.
inline double philox_uniform(uint64_t seed, uint64_t position, Draws draws = Draws::kToken) {
  auto bits = philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                             static_cast<uint32_t>(draws), 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  uint64_t joined = uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<double>(joined >> 11) * 0x1.0p-53;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PHILOX_H_
