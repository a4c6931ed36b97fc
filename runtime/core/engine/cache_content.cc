#include "runtime/core/engine/cache_content.h"

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Adds an event for each block of a node.
void add_node(const PrefixTree::Node& node, std::vector<CacheEvent>* page) {
  for (size_t group = 0; group < node.blocks.size(); ++group) {
    if (node.blocks[group] == PrefixTree::kHole) continue;
    CacheEvent event;
    event.stored = true;
    event.group = static_cast<int32_t>(group);
    event.block = node.archived;
    event.parent = PrefixTree::name_of(node.parent);
    event.origin = node.first->origin;
    event.tokens = node.tokens;
    page->push_back(std::move(event));
  }
}

void read_cache(const KvBlocks& kv, ContentPlace* place, size_t limit, std::vector<CacheEvent>* page) {
  size_t looked = 0;
  uint64_t last = place->number;
  kv.visit_from(place->number, [&](const PrefixTree::Node& node) {
    if (looked++ == limit) return false;
    add_node(node, page);
    last = node.number;
    return true;
  });
  place->number = last;
  if (looked <= limit) place->stage = ContentPlace::kHeld;
}

}  // namespace

std::vector<CacheEvent> read_content(const KvBlocks& kv, const BlockTiers* tiers, ContentPlace* place,
                                     size_t limit) {
  if (place->stage < ContentPlace::kCache || place->stage > ContentPlace::kEnd)
    throw Error("InvalidRequestError",
                concat("[engine] the content of the prefix cache has stages 0 to ",
                       static_cast<int32_t>(ContentPlace::kEnd), ", got ", place->stage, "; begin again"));
  std::vector<CacheEvent> page;
  if (place->stage == ContentPlace::kCache) {
    read_cache(kv, place, limit, &page);
  } else if (!tiers) {
    place->stage = ContentPlace::kEnd;
  } else if (place->stage != ContentPlace::kEnd) {
    const auto part = static_cast<BlockTiers::Part>(place->stage - ContentPlace::kHeld);
    const CacheTier tier = part == BlockTiers::Part::kDisk ? CacheTier::kDisk : CacheTier::kMemory;
    const bool ended = tiers->visit_page(part, &place->buckets, limit, [&](const BlockId& id) {
      CacheEvent event;
      event.stored = true;
      event.tier = tier;
      event.group = id.group;
      event.block = id.key;
      page.push_back(std::move(event));
    });
    if (ended) *place = {place->stage + 1, 0, {}};
  }
  return page;
}

}  // namespace tensorwright
