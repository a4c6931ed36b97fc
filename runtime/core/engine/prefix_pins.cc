#include "runtime/core/engine/prefix_pins.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

int32_t PrefixPins::pin(int64_t number, std::span<const int32_t> tokens, std::string_view salt) {
  const auto size = static_cast<size_t>(kv_.block_size());
  const size_t blocks = tokens.size() / size;
  // A match leaves one token to compute, so one more than the whole blocks is given.
  std::vector<int32_t> asked(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(blocks * size));
  asked.push_back(0);
  const KvBlocks::Match match = kv_.match(asked, salt);
  const auto found = static_cast<int32_t>(match.path.size());
  if (match.path.size() < blocks || blocks == 0) return found;
  check_room(match);
  SequenceBlocks held;
  kv_.attach(match, held);
  const auto [place, is_new] = pins_.try_emplace(number);
  if (!is_new) {
    kv_.release(held);
    throw std::logic_error("[prefix_pins] a number names one pin");
  }
  place->second = std::move(held);
  try {
    count(place->second, 1);
  } catch (...) {
    kv_.release(place->second);
    pins_.erase(place);
    throw;
  }
  return found;
}

void PrefixPins::check_room(const KvBlocks::Match& match) const {
  for (size_t group = 0; group < pinned_.size(); ++group) {
    size_t all = pinned_[group].size();
    const auto length = static_cast<int32_t>(match.path.size());
    for (int32_t i = 0; i < length; ++i) {
      if (!kv_.is_needed_behind(static_cast<int32_t>(group), length, i)) continue;
      all += !pinned_[group].contains(match.path[static_cast<size_t>(i)]->blocks[group]);
    }
    if (all <= static_cast<size_t>(room_)) continue;
    throw Error("InvalidRequestError",
                concat("[engine] pinned prefixes must fit ", room_, " blocks of ", kv_.block_size(),
                       " tokens (pinned_prefix_memory), got ", all,
                       " with this one; unpin another, or raise pinned_prefix_memory"));
  }
}

// Counts the blocks of a pin that comes (1) or goes (-1). If it throws, nothing has changed.
void PrefixPins::count(const SequenceBlocks& held, int32_t change) {
  for (size_t group = 0; group < pinned_.size() && change > 0; ++group)
    pinned_[group].reserve(pinned_[group].size() + static_cast<size_t>(held.tables[group].held()));
  for (size_t group = 0; group < pinned_.size(); ++group) {
    const BlockTable& table = held.tables[group];
    for (int32_t i = 0; i < table.size(); ++i) {
      if (table[i] < 0) continue;  // it fell out of the window
      const auto at = pinned_[group].try_emplace(table[i], 0).first;
      if ((at->second += change) == 0) pinned_[group].erase(at);
    }
  }
}

void PrefixPins::unpin(int64_t number) {
  const auto at = pins_.find(number);
  if (at == pins_.end()) return;
  count(at->second, -1);
  kv_.release(at->second);
  pins_.erase(at);
}

void PrefixPins::end() {
  while (!pins_.empty()) {
    for (PrefixTree::Node* node = pins_.begin()->second.tail; node; node = node->parent)
      node->priority = std::numeric_limits<int32_t>::max();
    unpin(pins_.begin()->first);
  }
}

int64_t PrefixPins::held(int32_t group) const {
  int64_t held = 0;
  for (const auto& [number, blocks] : pins_) held += blocks.tables[static_cast<size_t>(group)].held();
  return held;
}

PinStats PrefixPins::stats() const {
  PinStats stats;
  stats.prefixes = static_cast<int32_t>(pins_.size());
  stats.room = room_;
  for (size_t group = 0; group < pinned_.size(); ++group)
    stats.bytes += static_cast<int64_t>(pinned_[group].size()) * block_bytes_[group];
  return stats;
}

}  // namespace tensorwright
