// Computes how much memory the KV cache gets, and which part of it the states of recurrent layers take.
// runtime/engine/memory.py computes the same for Python; a test compares the two.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_CACHE_SIZE_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_CACHE_SIZE_H_

#include <cstdint>
#include <optional>

namespace tensorwright {

// What an engine needs of memory, as its config.json says.
struct CacheNeeds {
  int64_t weight_bytes = 0;
  int64_t block_bytes = 0;  // of one block of the KV cache over all layers
  int64_t state_bytes = 0;  // of one sequence's states over all recurrent layers; 0: none
  int32_t most_held = 0;    // positions whose blocks a sequence holds at most
  int32_t block_size = 0;
};

// The parts of a cache.
struct CacheShares {
  int64_t kv_bytes;   // of its KV blocks
  int32_t sequences;  // that have states
  int32_t snapshots;  // of states
};

// Returns half of the memory beside the weights, but no more than a full batch of the longest sequences can
// use. available: bytes. prefixes: whether there are to be snapshots of states. Throws
// Error{"OutOfMemoryError"} if not even one block, and the states of one sequence, fit.
int64_t default_cache_bytes(const CacheNeeds& needs, int32_t max_batch_size, int64_t available,
                            bool prefixes);
// Throws Error{"OutOfMemoryError"} if `asked`, in bytes, is less than a cache must have, or more than is
// available.
void check_cache_bytes(const CacheNeeds& needs, int64_t asked, int64_t available);
// Divides a cache of `size` bytes: the states of max_batch_size sequences come first, or of fewer if memory
// is short. snapshots: how many are asked for; none leaves the choice. The KV blocks get the rest. Throws
// Error{"OutOfMemoryError"} for more snapshots than fit.
CacheShares share_cache(const CacheNeeds& needs, int64_t size, int32_t max_batch_size,
                        std::optional<int32_t> snapshots);
// Returns how many bytes of its memory an engine touches before requests come.
int64_t populated_bytes(int64_t available);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_CACHE_SIZE_H_
