// Keeps pinned prefixes in the cache: their blocks count as used, so nothing evicts them. Requests find them
// as they find what any other sequence holds.
//
// The engine's loop calls it between two steps. How many blocks of a group pins may hold is fixed at the
// start, and no request is taken that needs these blocks too (EngineCore::groups_for_requests).
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_PINS_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_PINS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/cache/kv_blocks.h"

namespace tensorwright {

struct PinStats {
  int32_t prefixes = 0;
  int64_t bytes = 0;  // of the pinned blocks; a block that several prefixes share counts once
  int32_t room = 0;   // the blocks of each group that pins may hold
};

class PrefixPins {
 public:
  // room: the blocks of each group that pins may hold. block_bytes: by cache group.
  PrefixPins(KvBlocks& kv, int32_t room, std::vector<int64_t> block_bytes)
      : kv_(kv), room_(room), block_bytes_(std::move(block_bytes)), pinned_(block_bytes_.size()) {}

  // Pins the full blocks of `tokens` under a number that is not in use. Returns how many of them the cache
  // has; if it lacks some, nothing is pinned. Throws Error{"InvalidRequestError"} if there is no room for
  // them, and then pins nothing.
  int32_t pin(int64_t number, std::span<const int32_t> tokens, std::string_view salt);
  // Lets the blocks of a pin be evicted, the last of all. Does nothing if there is no such pin.
  void unpin(int64_t number);
  // Ends all pins of an engine that ends. Their blocks get the highest priority, so that a tier on disk keeps
  // them longer than others.
  void end();
  // Returns the number of references that pins have to blocks of a group.
  int64_t held(int32_t group) const;
  PinStats stats() const;

 private:
  void check_room(const KvBlocks::Match& match) const;
  void count(const SequenceBlocks& held, int32_t change);

  KvBlocks& kv_;
  const int32_t room_;
  const std::vector<int64_t> block_bytes_;
  std::map<int64_t, SequenceBlocks> pins_;
  std::vector<std::unordered_map<int32_t, int32_t>> pinned_;  // by group: block -> pins that have it
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_PINS_H_
