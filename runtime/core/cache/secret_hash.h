// Computes a hash that nobody outside the process can foresee, so that nobody can make its values collide.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_
#define TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace tensorwright {

// Returns SipHash-1-3 of `first` and `tokens`, with a key that is drawn once per process. No answer to a
// request may depend on the hash.
uint64_t secret_hash(uint64_t first, std::span<const int32_t> tokens);
uint64_t secret_hash(std::string_view bytes);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_
