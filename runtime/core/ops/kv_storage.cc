#include "runtime/core/ops/kv_storage.h"

#include <algorithm>
#include <cstring>

namespace tensorwright {

KvStorage::KvStorage(const Plan& plan) {
  layers_.reserve(plan.kv_layers.size());
  for (const KvLayerRecord& layer : plan.kv_layers) {
    layers_.push_back({layer.group, plan.kv_block_bytes(layer), Arena()});
  }
}

void KvStorage::allocate(const std::vector<int32_t>& blocks) {
  // A block of a layer is below 2^38 bytes (plan.cc) and blocks are below 2^31: Arena refuses what does not
  // fit.
  for (Layer& layer : layers_) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(layer.block_bytes, static_cast<size_t>(blocks[layer.group]), &bytes))
      bytes = SIZE_MAX;
    layer.pages = Arena(bytes, "the KV cache");
  }
  blocks_ = blocks;
}

std::vector<MemoryPiece> KvStorage::pieces() const {
  constexpr size_t kPiece = size_t{2} << 20;
  size_t block = 1, most = 0;
  for (const Layer& layer : layers_) {
    block = std::max(block, layer.block_bytes);
    most = std::max(most, static_cast<size_t>(blocks_[layer.group]));
  }
  const size_t blocks = std::max<size_t>(1, kPiece / block);  // blocks in a piece
  std::vector<MemoryPiece> pieces;
  for (size_t first = 0; first == 0 || first < most; first += blocks) {
    for (const Layer& layer : layers_) {
      const size_t begin = std::min(first * layer.block_bytes, layer.pages.bytes());
      const size_t end = std::min(begin + blocks * layer.block_bytes, layer.pages.bytes());
      if (first == 0 || end > begin) pieces.push_back({layer.pages.data() + begin, end - begin});
    }
  }
  return pieces;
}

void KvStorage::copy_block(int32_t group, int32_t from, int32_t to) {
  if (from == to) return;
  for (const Layer& layer : layers_) {
    if (layer.group != static_cast<uint32_t>(group)) continue;
    char* pages = layer.pages.data();
    std::memcpy(pages + static_cast<size_t>(to) * layer.block_bytes,
                pages + static_cast<size_t>(from) * layer.block_bytes, layer.block_bytes);
  }
}

void KvStorage::read_block(int32_t group, int32_t block, char* to) const {
  for (const Layer& layer : layers_) {
    if (layer.group != static_cast<uint32_t>(group)) continue;
    std::memcpy(to, layer.pages.data() + static_cast<size_t>(block) * layer.block_bytes, layer.block_bytes);
    to += layer.block_bytes;
  }
}

void KvStorage::write_block(int32_t group, int32_t block, const char* from) {
  for (const Layer& layer : layers_) {
    if (layer.group != static_cast<uint32_t>(group)) continue;
    std::memcpy(layer.pages.data() + static_cast<size_t>(block) * layer.block_bytes, from, layer.block_bytes);
    from += layer.block_bytes;
  }
}

}  // namespace tensorwright
