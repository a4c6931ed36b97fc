// A prefix that another engine has computed, while its blocks arrive. Until KvBlocks::adopt() remembers it,
// no sequence sees it; when it is destroyed, its blocks are free again.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_IMPORT_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_IMPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/cache/block_allocator.h"

namespace tensorwright {

// One block of one cache group, of a prefix: block `index` holds the positions from index * block_size on.
struct PrefixPiece {
  int32_t group = 0;
  int32_t index = 0;
};

struct PrefixImport {
  std::vector<int32_t> tokens;  // [blocks * block_size]
  std::string salt;
  int32_t blocks = 0;
  // [cache groups][blocks]: what arrived. An entry is empty if the block is not needed, was known before, or
  // has not arrived.
  std::vector<std::vector<BlockRef>> arrived;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_IMPORT_H_
