#include "runtime/core/cache/secret_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

struct Key {
  uint64_t low, high;
};

const Key& process_key() {
  static const Key key = [] {
    std::random_device device;
    auto word = [&] { return uint64_t{device()} << 32 | device(); };
    return Key{word(), word()};
  }();
  return key;
}

// SipHash (Aumasson and Bernstein), with one round per word and three rounds at the end.
class Sip {
 public:
  explicit Sip(const Key& key = process_key()) {
    v0_ = key.low ^ 0x736f6d6570736575u, v1_ = key.high ^ 0x646f72616e646f6du;
    v2_ = key.low ^ 0x6c7967656e657261u, v3_ = key.high ^ 0x7465646279746573u;
  }
  void add(uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }
  uint64_t finish() {
    v2_ ^= 0xff;
    for (int i = 0; i < 3; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_, v1_ = std::rotl(v1_, 13) ^ v0_, v0_ = std::rotl(v0_, 32);
    v2_ += v3_, v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_, v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_, v1_ = std::rotl(v1_, 17) ^ v2_, v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
};

void add_bytes(Sip& sip, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof word, size - at));
    sip.add(word);
  }
  sip.add(size);
}

}  // namespace

uint64_t secret_hash(uint64_t first, std::span<const int32_t> tokens) {
  Sip sip;
  sip.add(first);
  add_bytes(sip, tokens.data(), tokens.size_bytes());
  return sip.finish();
}

ArchiveHash::ArchiveHash(std::string_view secret) {
  if (secret.size() != kSecretBytes)
    throw Error("InvalidOptionError", concat("[secret_hash] the secret of archive keys must have ",
                                             kSecretBytes, " bytes, got ", secret.size(), "; draw one"));
  std::memcpy(words_, secret.data(), kSecretBytes);
}

ArchiveKey ArchiveHash::root(std::string_view salt) const {
  Sip high(Key{words_[0], words_[1]}), low(Key{words_[2], words_[3]});
  for (Sip* sip : {&high, &low}) {
    sip->add(0);  // no block begins so: its parent's key comes behind a 1
    add_bytes(*sip, salt.data(), salt.size());
  }
  return {high.finish(), low.finish()};
}

ArchiveKey ArchiveHash::child(const ArchiveKey& parent, std::span<const int32_t> tokens) const {
  Sip high(Key{words_[0], words_[1]}), low(Key{words_[2], words_[3]});
  for (Sip* sip : {&high, &low}) {
    sip->add(1);
    sip->add(parent.high);
    sip->add(parent.low);
    add_bytes(*sip, tokens.data(), tokens.size_bytes());
  }
  return {high.finish(), low.finish()};
}

uint64_t secret_hash(std::string_view bytes) {
  Sip sip;
  add_bytes(sip, bytes.data(), bytes.size());
  return sip.finish();
}

}  // namespace tensorwright
