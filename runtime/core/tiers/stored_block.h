// A block of the KV cache that is kept outside of it: its name and its bytes.
#ifndef TENSORWRIGHT_RUNTIME_CORE_STORED_BLOCK_H_
#define TENSORWRIGHT_RUNTIME_CORE_STORED_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/core/cache/secret_hash.h"

namespace tensorwright {

// The key names the salt and all tokens up to the block's end.
struct BlockId {
  ArchiveKey key;
  int32_t group = 0;  // the cache group
  bool operator==(const BlockId&) const = default;
};

struct BlockIdHash {
  size_t operator()(const BlockId& id) const {
    return static_cast<size_t>(id.key.high ^ static_cast<uint64_t>(id.group) * 0x9E3779B97F4A7C15u);
  }
};

struct StoredBlock {
  BlockId id;
  int32_t priority = 0;  // blocks of a lower priority give way first
  int64_t bytes = 0;
  std::shared_ptr<const char[]> content;  // [bytes], as the cache lays the block out
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_STORED_BLOCK_H_
