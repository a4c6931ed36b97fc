// The memory of the KV cache: per layer one array of blocks, each laid out as
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

  // blocks: per cache group. Throws Error{"OutOfMemoryError"}.
  void allocate(const std::vector<int32_t>& blocks);

  // Blocks of each cache group; empty before allocate().
  const std::vector<int32_t>& blocks() const { return blocks_; }
  // [blocks][kv_heads][K, V] of a layer.
  char* pages(size_t layer) const { return layers_[layer].pages.data(); }
  size_t block_bytes(size_t layer) const { return layers_[layer].block_bytes; }

  // All of it in the order in which blocks are given out: a piece of each layer, each about a huge page, then
  // the next of each. A layer without any has an empty first piece.
  std::vector<MemoryPiece> pieces() const;

  // Copies one block of a group in all of its layers; both indices must be in range.
  void copy_block(int32_t group, int32_t from, int32_t to);

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
