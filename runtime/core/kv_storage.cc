#include "runtime/core/kv_storage.h"

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

void KvStorage::copy_block(int32_t group, int32_t from, int32_t to) {
  if (from == to) return;
  for (const Layer& layer : layers_) {
    if (layer.group != static_cast<uint32_t>(group)) continue;
    char* pages = layer.pages.data();
    std::memcpy(pages + static_cast<size_t>(to) * layer.block_bytes,
                pages + static_cast<size_t>(from) * layer.block_bytes, layer.block_bytes);
  }
}

}  // namespace tensorwright
