// Computes hashes that nobody who lacks their key can foresee, so that nobody can make their values collide:
// with a key that is drawn once per process, or with one that outlives it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_
#define TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tensorwright {

// Returns SipHash-1-3 of `first` and `tokens`, with a key that is drawn once per process. No answer to a
// request may depend on the hash.
uint64_t secret_hash(uint64_t first, std::span<const int32_t> tokens);
uint64_t secret_hash(std::string_view bytes);

// The name of a block of tokens behind all tokens before it, for those who keep its content outside the cache
// (tiers/block_tiers.h). Two hashes of different keys, so that two contents never meet under one name.
struct ArchiveKey {
  uint64_t high = 0, low = 0;
  bool operator==(const ArchiveKey&) const = default;
};

// Computes archive keys with a secret that its owner keeps: the same after a restart.
class ArchiveHash {
 public:
  static constexpr size_t kSecretBytes = 32;

  // Throws Error{"InvalidOptionError"} unless the secret has kSecretBytes bytes.
  explicit ArchiveHash(std::string_view secret);
  // Returns the key that first blocks of this salt are under.
  ArchiveKey root(std::string_view salt) const;
  // Returns the key of a block of tokens under its parent's.
  ArchiveKey child(const ArchiveKey& parent, std::span<const int32_t> tokens) const;

 private:
  uint64_t words_[4];
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SECRET_HASH_H_
