// The names of steps and constants are those of xxHash's specification (doc/xxhash_spec.md, "XXH3").
#include "runtime/core/base/xxh3.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace tensorwright {

namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t kPrimeMx1 = 0x165667919E3779F9, kPrimeMx2 = 0x9FB21C651E98DF25;

constexpr std::array<unsigned char, 192> kSecret = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
// The bytes of a stripe, of the secret's step from one stripe to the next, and of a block of stripes.
constexpr size_t kStripe = 64, kStep = 8, kBlock = (kSecret.size() - kStripe) / kStep * kStripe;
constexpr size_t kMinSecret = 136;  // the least secret, whose last bytes inputs of middle length use

struct Hash128 {
  uint64_t low, high;
};

uint32_t read32(const void* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t read64(const void* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t secret64(size_t at) { return read64(kSecret.data() + at); }

Hash128 multiply(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return {static_cast<uint64_t>(product), static_cast<uint64_t>(product >> 64)};
}

uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const Hash128 product = multiply(a, b);
  return product.low ^ product.high;
}

uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 37)) * kPrimeMx1;
  return hash ^ (hash >> 32);
}

// The last step of XXH64, which the shortest inputs use.
uint64_t avalanche64(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime64_2;
  hash = (hash ^ (hash >> 29)) * kPrime64_3;
  return hash ^ (hash >> 32);
}

Hash128 hash_to_3(const char* in, size_t size) {
  const auto byte = [&](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>(in[at])); };
  const uint32_t low =
      byte(0) << 16 | byte(size >> 1) << 24 | byte(size - 1) | static_cast<uint32_t>(size) << 8;
  const uint32_t swapped = __builtin_bswap32(low);
  const uint32_t high = swapped << 13 | swapped >> 19;
  const uint64_t flip_low = read32(&kSecret[0]) ^ read32(&kSecret[4]);
  const uint64_t flip_high = read32(&kSecret[8]) ^ read32(&kSecret[12]);
  return {avalanche64(low ^ flip_low), avalanche64(high ^ flip_high)};
}

Hash128 hash_to_8(const char* in, size_t size) {
  const uint64_t input = read32(in) + (static_cast<uint64_t>(read32(in + size - 4)) << 32);
  Hash128 hash = multiply(input ^ secret64(16) ^ secret64(24), kPrime64_1 + (size << 2));
  hash.high += hash.low << 1;
  hash.low ^= hash.high >> 3;
  hash.low = (hash.low ^ (hash.low >> 35)) * kPrimeMx2;
  return {hash.low ^ (hash.low >> 28), avalanche(hash.high)};
}

Hash128 hash_to_16(const char* in, size_t size) {
  const uint64_t first = read64(in);
  uint64_t last = read64(in + size - 8);
  Hash128 hash = multiply(first ^ last ^ secret64(32) ^ secret64(40), kPrime64_1);
  hash.low += static_cast<uint64_t>(size - 1) << 54;
  last ^= secret64(48) ^ secret64(56);
  hash.high += last + (last & 0xFFFFFFFF) * (kPrime32_2 - 1);
  hash.low ^= __builtin_bswap64(hash.high);
  Hash128 end = multiply(hash.low, kPrime64_2);
  end.high += hash.high * kPrime64_2;
  return {avalanche(end.low), avalanche(end.high)};
}

uint64_t mix_16(const char* in, size_t secret) {
  return multiply_fold(read64(in) ^ secret64(secret), read64(in + 8) ^ secret64(secret + 8));
}

void mix_32(Hash128& acc, const char* a, const char* b, size_t secret) {
  acc.low = (acc.low + mix_16(a, secret)) ^ (read64(b) + read64(b + 8));
  acc.high = (acc.high + mix_16(b, secret + 16)) ^ (read64(a) + read64(a + 8));
}

Hash128 finish(const Hash128& acc, size_t size) {
  const uint64_t low = acc.low + acc.high;
  const uint64_t high = acc.low * kPrime64_1 + acc.high * kPrime64_4 + size * kPrime64_2;
  return {avalanche(low), uint64_t{0} - avalanche(high)};
}

Hash128 hash_to_128(const char* in, size_t size) {
  Hash128 acc{size * kPrime64_1, 0};
  for (size_t pairs = (size - 1) / 32 + 1; pairs-- > 0;)
    mix_32(acc, in + 16 * pairs, in + size - 16 * (pairs + 1), 32 * pairs);
  return finish(acc, size);
}

Hash128 hash_to_240(const char* in, size_t size) {
  Hash128 acc{size * kPrime64_1, 0};
  for (size_t end = 32; end < 160; end += 32) mix_32(acc, in + end - 32, in + end - 16, end - 32);
  acc = {avalanche(acc.low), avalanche(acc.high)};
  for (size_t end = 160; end <= size; end += 32) mix_32(acc, in + end - 32, in + end - 16, 3 + end - 160);
  mix_32(acc, in + size - 16, in + size - 32, kMinSecret - 17 - 16);
  return finish(acc, size);
}

using Lanes = std::array<uint64_t, 8>;

inline void accumulate(Lanes& acc, const char* in, size_t secret) {
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t value = read64(in + 8 * i), key = value ^ secret64(secret + 8 * i);
    acc[i ^ 1] += value;
    acc[i] += (key & 0xFFFFFFFF) * (key >> 32);
  }
}

void scramble(Lanes& acc) {
  for (size_t i = 0; i < 8; ++i)
    acc[i] = (acc[i] ^ (acc[i] >> 47) ^ secret64(kSecret.size() - kStripe + 8 * i)) * kPrime32_1;
}

uint64_t merge(const Lanes& acc, size_t secret, uint64_t start) {
  for (size_t i = 0; i < 4; ++i)
    start +=
        multiply_fold(acc[2 * i] ^ secret64(secret + 16 * i), acc[2 * i + 1] ^ secret64(secret + 16 * i + 8));
  return avalanche(start);
}

Hash128 hash_long(const char* in, size_t size) {
  Lanes acc = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
               kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  const size_t blocks = (size - 1) / kBlock;
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t stripe = 0; stripe < kBlock / kStripe; ++stripe)
      accumulate(acc, in + block * kBlock + stripe * kStripe, stripe * kStep);
    scramble(acc);
  }
  const char* rest = in + blocks * kBlock;
  const size_t stripes = (size - 1 - blocks * kBlock) / kStripe;
  for (size_t stripe = 0; stripe < stripes; ++stripe)
    accumulate(acc, rest + stripe * kStripe, stripe * kStep);
  accumulate(acc, in + size - kStripe, kSecret.size() - kStripe - 7);
  return {merge(acc, 11, size * kPrime64_1), merge(acc, kSecret.size() - kStripe - 11, ~(size * kPrime64_2))};
}

Hash128 hash(const char* in, size_t size) {
  if (size > 240) return hash_long(in, size);
  if (size > 128) return hash_to_240(in, size);
  if (size > 16) return hash_to_128(in, size);
  if (size > 8) return hash_to_16(in, size);
  if (size > 3) return hash_to_8(in, size);
  if (size > 0) return hash_to_3(in, size);
  return {avalanche64(secret64(64) ^ secret64(72)), avalanche64(secret64(80) ^ secret64(88))};
}

}  // namespace

std::string xxh3_128_hex(std::span<const char> bytes) {
  const Hash128 value = hash(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(value.high),
                static_cast<unsigned long long>(value.low));
  return text;
}

}  // namespace tensorwright
