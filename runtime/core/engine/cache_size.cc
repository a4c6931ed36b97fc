#include "runtime/core/engine/cache_size.h"

#include <algorithm>
#include <string>

#include "runtime/core/base/error.h"
#include "runtime/core/engine/engine_options.h"

namespace tensorwright {
namespace {

constexpr double kShare = 0.5;           // of the memory beside the weights
constexpr double kSnapshotShare = 0.25;  // of the cache
constexpr int64_t kSnapshotsPerSequence = 4;
constexpr int64_t kPositionsPerState =
    1024;  // that each sequence gets beside its states where memory is short
constexpr int64_t kMaxPopulated = int64_t{1} << 30;
constexpr double kPopulatedShare = 1.0 / 8;

// Returns a product of numbers that are not negative, or what no memory has if it is larger.
int64_t times(int64_t a, int64_t b) {
  constexpr int64_t kMost = int64_t{1} << 55;
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : std::min(product, kMost);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse_memory(const std::string& message) {
  throw Error("OutOfMemoryError", "[engine] " + message);
}

}  // namespace

int64_t default_cache_bytes(const CacheNeeds& needs, int32_t max_batch_size, int64_t available,
                            bool prefixes) {
  const int64_t least = needs.block_bytes + needs.state_bytes;
  const int64_t states = times(needs.state_bytes, max_batch_size);
  int64_t useful =
      times(times(needs.block_bytes, ceil_div(needs.most_held, needs.block_size)), max_batch_size) + states;
  if (prefixes) {
    const double share = static_cast<double>(useful) * kSnapshotShare / (1 - kSnapshotShare);
    useful += std::min(kSnapshotsPerSequence * states, static_cast<int64_t>(share));
  }
  // Mapped weights are page cache, which counts as available, but the engine needs them while it runs.
  const auto room = static_cast<int64_t>(static_cast<double>(available - needs.weight_bytes) * kShare);
  if (room < least) {
    refuse_memory("the KV cache must have at least " + std::to_string(least) + " bytes, got " +
                  std::to_string(available) + " bytes of available memory, of which the weights take " +
                  std::to_string(needs.weight_bytes) + "; free some memory, or set kv_cache_memory");
  }
  return std::min(useful, room);
}

void check_cache_bytes(const CacheNeeds& needs, int64_t asked, int64_t available) {
  const int64_t least = needs.block_bytes + needs.state_bytes;
  if (asked < least) {
    refuse_memory("kv_cache_memory must hold one block and the states of one completion, " +
                  std::to_string(least) + " bytes, got " + std::to_string(asked) + "; raise it");
  }
  if (asked > available) {
    refuse_memory("kv_cache_memory must be at most the available memory, " + std::to_string(available) +
                  " bytes, got " + std::to_string(asked) + "; ask for less, or leave it out");
  }
}

CacheShares share_cache(const CacheNeeds& needs, int64_t size, int32_t max_batch_size,
                        std::optional<int32_t> snapshots) {
  const int64_t state = needs.state_bytes, block = needs.block_bytes;
  if (state == 0) return {size, max_batch_size, 0};
  const int64_t positions = std::min<int64_t>(kPositionsPerState, needs.most_held);
  const int64_t with_positions = state + times(block, ceil_div(positions, needs.block_size));
  const int64_t sequences = std::max<int64_t>(1, std::min<int64_t>(max_batch_size, size / with_positions));
  const int64_t room = std::max<int64_t>(0, size - sequences * (state + block)) / state;
  int64_t kept = 0;
  if (!snapshots) {
    const int64_t wanted = std::min(kSnapshotsPerSequence * sequences, int64_t{kMaxSnapshots});
    const auto share = static_cast<int64_t>(static_cast<double>(size) * kSnapshotShare) / state;
    kept = std::min({wanted, share, room});
  } else if (*snapshots > room) {
    refuse_memory("state_snapshots must be at most " + std::to_string(room) + ", which a cache of " +
                  std::to_string(size) + " bytes holds beside the states of " + std::to_string(sequences) +
                  " completions, got " + std::to_string(*snapshots) +
                  "; ask for fewer, or raise kv_cache_memory");
  } else {
    kept = *snapshots;
  }
  return {size - (sequences + kept) * state, static_cast<int32_t>(sequences), static_cast<int32_t>(kept)};
}

int64_t populated_bytes(int64_t available) {
  return std::min(kMaxPopulated, static_cast<int64_t>(static_cast<double>(available) * kPopulatedShare));
}

}  // namespace tensorwright
