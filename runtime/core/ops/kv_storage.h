// Owns the memory of the KV cache: one array of blocks per layer, each laid out as
// plugins/paged_attention/layout.h says.
#ifndef TENSORWRIGHT_RUNTIME_CORE_KV_STORAGE_H_
#define TENSORWRIGHT_RUNTIME_CORE_KV_STORAGE_H_

#include <cstdint>
#include <vector>

#include "runtime/core/base/arena.h"
#include "runtime/core/base/populate.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

class KvStorage {
 public:
  explicit KvStorage(const Plan& plan);

  // blocks: the number of blocks of each cache group. Throws Error{"OutOfMemoryError"}.
  void allocate(const std::vector<int32_t>& blocks);

  // The number of blocks of each cache group; empty before allocate().
  const std::vector<int32_t>& blocks() const { return blocks_; }
  // Returns the blocks of a layer: [blocks][kv_heads][K, V].
  char* pages(size_t layer) const { return layers_[layer].pages.data(); }
  size_t block_bytes(size_t layer) const { return layers_[layer].block_bytes; }

  // Returns all memory of the cache in the order in which blocks are given out: a piece of each layer, of
  // about a huge page, then the next piece of each layer. A layer without blocks has an empty first piece.
  std::vector<MemoryPiece> pieces() const;

  // Copies one block of a group in all of its layers; both indices must be in range.
  void copy_block(int32_t group, int32_t from, int32_t to);
  // Copy one block of a group, layer by layer, out of the cache or into it; the index must be in range.
  void read_block(int32_t group, int32_t block, char* to) const;
  void write_block(int32_t group, int32_t block, const char* from);

 private:
  struct Layer {
    uint32_t group;
    size_t block_bytes;
    Arena pages;
  };

  std::vector<Layer> layers_;
  std::vector<int32_t> blocks_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_KV_STORAGE_H_
