#include "runtime/core/cache/kv_blocks.h"

#include <algorithm>
#include <exception>
#include <ranges>
#include <stdexcept>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/invariants.h"

namespace tensorwright {

KvBlocks::KvBlocks(std::vector<GroupShape> groups, int32_t block_size, bool prefix_cache,
                   PrefixTree::Hash hash, StateShape states)
    : shapes_(std::move(groups)),
      block_size_(block_size),
      max_snapshots_(states.sequences > 0 && prefix_cache ? states.snapshots : 0) {
  std::vector<int32_t> windows;
  for (const GroupShape& shape : shapes_) {
    groups_.emplace_back(shape.blocks);
    // Of a group whose sequences forget blocks too, the tree has nodes with holes between nodes without.
    windows.push_back(shape.window + shape.kept);
  }
  if (states.sequences == 0 && std::ranges::any_of(shapes_, [](const GroupShape& s) { return s.kept > 0; }))
    throw std::logic_error("[kv_blocks] the states of a sequence say which of its blocks are forgotten");
  if (states.sequences > 0) slots_.emplace(states.sequences + max_snapshots_);
  // Without snapshots no sequence with states could go on behind a remembered block.
  if (prefix_cache && (!slots_ || max_snapshots_ > 0)) tree_.emplace(groups_, block_size, hash, windows);
}

// Returns the first entry behind those of sink tokens that a position from `next` on sees, or the last
// published entry if that comes earlier.
int32_t KvBlocks::first_needed(size_t group, int32_t next, int32_t published) const {
  int32_t seen = shapes_[group].first_seen(next) / block_size_;
  if (tree_) seen = std::min(seen, std::max(0, published - 1));
  return std::max(seen, sink_blocks(static_cast<int32_t>(group)));
}

// Returns whether a sequence that starts behind a node, from its snapshot, needs the block of an entry.
bool KvBlocks::is_kept_behind(const PrefixTree::Node* node, size_t group, int32_t index) const {
  if (!node->snapshot) return false;
  return !gone_(static_cast<int32_t>(group), node->snapshot.id())[static_cast<size_t>(index)];
}

// Returns whether a sequence needs block `index` of a group behind a path.
bool KvBlocks::needs(const std::vector<PrefixTree::Node*>& path, size_t group, int32_t index) const {
  if (shapes_[group].kept > 0) return is_kept_behind(path.back(), group, index);
  return is_needed_behind(static_cast<int32_t>(group), static_cast<int32_t>(path.size()), index);
}

// Returns whether a sequence can go on behind the first `length` nodes. Where which blocks it needs depends
// on a snapshot, and there is none, the last block must be there.
bool KvBlocks::ends_hit(const std::vector<PrefixTree::Node*>& path, size_t length) const {
  auto entries = static_cast<int32_t>(length);
  for (size_t group = 0; group < groups_.size(); ++group) {
    const auto is_hole = [&](int32_t i) {
      return path[static_cast<size_t>(i)]->blocks[group] == PrefixTree::kHole;
    };
    if (shapes_[group].kept > 0) {
      if (entries > 0 && is_hole(entries - 1)) return false;
      for (int32_t i = 0; i < entries; ++i) {
        if (is_hole(i) && is_kept_behind(path[length - 1], group, i)) return false;
      }
      continue;
    }
    const int32_t first = first_needed(group, entries * block_size_, entries);
    for (int32_t i = entries; i-- > first;) {
      if (is_hole(i)) return false;
    }
    for (int32_t i = std::min(entries, sink_blocks(static_cast<int32_t>(group))); i-- > 0;) {
      if (is_hole(i)) return false;
    }
  }
  return true;
}

KvBlocks::Match KvBlocks::match(std::span<const int32_t> tokens, std::string_view salt) const {
  Match match;
  match.filled.resize(groups_.size());
  match.idle.resize(groups_.size());
  if (!tree_ || tokens.empty()) return match;
  match.path = tree_->match(tokens.first(tokens.size() - 1), salt);
  while (!ends_hit(match.path, match.path.size())) match.path.pop_back();
  match.remembered = static_cast<int32_t>(match.path.size());
  while (slots_ && !match.path.empty() &&
         !(match.path.back()->snapshot && ends_hit(match.path, match.path.size())))
    match.path.pop_back();
  auto length = static_cast<int32_t>(match.path.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (int32_t i = 0; i < length; ++i) {
      if (!needs(match.path, group, i)) continue;
      ++match.filled[group];
      match.idle[group] += match.path[i]->idle[group] != 0;
    }
  }
  return match;
}

void KvBlocks::attach(const Match& match, SequenceBlocks& held) {
  if (held.size() != 0) throw std::logic_error("[kv_blocks] only an empty sequence can be given a prefix");
  const auto length = static_cast<int32_t>(match.path.size());
  std::vector<BlockTable> tables = empty_tables();
  for (BlockTable& table : tables) table.reserve(length);
  BlockRef state;
  if (slots_) {
    state = take_slot();
    if (!match.path.empty()) copy_state_(match.path.back()->snapshot.id(), state.id());
  }
  // Nothing throws from here on.
  for (size_t group = 0; !match.path.empty() && group < groups_.size(); ++group) {
    BlockTable& table = tables[group];
    const auto share = [&](int32_t i) {
      table.append(tree_->share(match.path[static_cast<size_t>(i)], group));
    };
    if (shapes_[group].kept > 0) {
      for (int32_t i = 0; i < length; ++i) {
        if (needs(match.path, group, i)) {
          share(i);
        } else {
          table.append_hole();
        }
      }
      continue;
    }
    for (int32_t i = 0; i < std::min(table.sinks(), length); ++i) share(i);
    while (table.first() < first_needed(group, length * block_size_, length)) table.drop();
    for (int32_t i = table.first(); i < length; ++i) share(i);
  }
  if (slots_ && !match.path.empty()) {
    match.path.back()->snapshot_used = true;
    tree_->touch_snapshot(match.path.back());
  }
  held.state = std::move(state);
  held.tables = std::move(tables);
  held.published = static_cast<int32_t>(match.path.size());
  held.tail = match.path.empty() ? nullptr : match.path.back();
}

std::vector<BlockTable> KvBlocks::empty_tables() const {
  std::vector<BlockTable> tables;
  for (int32_t group = 0; group < groups(); ++group) tables.emplace_back(sink_blocks(group));
  return tables;
}

BlockRef KvBlocks::take_slot() {
  BlockRef slot = slots_->allocate();
  if (!slot) throw std::logic_error("[kv_blocks] there is a state slot for every running sequence");
  return slot;
}

SequenceBlocks KvBlocks::fork(const SequenceBlocks& held) {
  SequenceBlocks other;
  if (slots_) {
    other.state = take_slot();
    copy_state_(held.state.id(), other.state.id());
  }
  for (const BlockTable& table : held.tables) other.tables.push_back(table.share());
  other.tail = held.tail;
  other.published = held.published;
  other.gone_left = held.gone_left;
  return other;
}

bool KvBlocks::copies(size_t group, const SequenceBlocks& held, int32_t from) const {
  int32_t first = from / block_size_;
  return first < held.size() && groups_[group].references(held.tables[group][first]) > 1;
}

int32_t KvBlocks::missing(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const {
  return copies(group, held, from) + std::max(0, blocks_for(to) - held.size());
}

int32_t KvBlocks::outstanding(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const {
  int32_t all = missing(group, held, from, to), limit = shapes_[group].max_held;
  if (limit == 0 || held.tables.empty()) return limit == 0 ? all : std::min(all, limit);
  return std::min(all, std::max(0, limit - held.tables[group].held()) + copies(group, held, from));
}

int32_t KvBlocks::reach(const SequenceBlocks& held, int32_t from, int32_t to) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    int32_t room = available(static_cast<int32_t>(group)) - copies(group, held, from);
    if (room < 0) return from;
    to = static_cast<int32_t>(std::min<int64_t>(to, (int64_t{held.size()} + room) * block_size_));
  }
  return std::max(from, to);
}

bool KvBlocks::make_writable(SequenceBlocks& held, int32_t from, int32_t to) {
  if (held.tables.empty()) held.tables = empty_tables();
  if (reach(held, from, to) < to) return false;
  for (BlockTable& table : held.tables) table.reserve(blocks_for(to));
  int32_t first = from / block_size_, size = held.size();
  for (size_t group = 0; group < groups_.size(); ++group) {
    int32_t needed = missing(static_cast<int32_t>(group), held, from, to);
    while (groups_[group].free() < needed) {
      if (!tree_->evict(group)) throw std::logic_error("[kv_blocks] an idle block must be evictable");
    }
  }
  for (size_t group = 0; first < size && group < groups_.size(); ++group) {
    auto copy = [&](int32_t source, int32_t target) {
      if (copy_) copy_(static_cast<int32_t>(group), source, target);
    };
    held.tables[group].make_writable(first, groups_[group], copy);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (int32_t i = size; i < blocks_for(to); ++i) held.tables[group].append(groups_[group].allocate());
  }
  return true;
}

void KvBlocks::shrink(SequenceBlocks& held, int32_t blocks) {
  if (blocks < held.published) throw std::logic_error("[kv_blocks] published blocks stay until release");
  for (BlockTable& table : held.tables) table.truncate(blocks);
}

void KvBlocks::publish(SequenceBlocks& held, std::span<const int32_t> tokens, std::string_view salt,
                       int32_t priority) {
  if (!tree_) return;
  std::vector<int32_t> blocks(groups_.size());
  while (static_cast<size_t>(held.published + 1) * block_size_ <= tokens.size()) {
    int32_t index = held.published;
    for (size_t group = 0; group < groups_.size(); ++group) blocks[group] = held.tables[group][index];
    auto content = tokens.subspan(static_cast<size_t>(index) * block_size_, block_size_);
    held.tail = tree_->insert(held.tail, content, blocks, salt);
    held.tail->priority = std::max(held.tail->priority, priority);
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (held.tail->blocks[group] != blocks[group])
        held.tables[group].replace(index, tree_->share(held.tail, group));
    }
    ++held.published;
  }
}

std::vector<PrefixTree::Node*> KvBlocks::remembered_path(std::span<const int32_t> tokens,
                                                         std::string_view salt) const {
  return tree_ ? tree_->match(tokens, salt) : std::vector<PrefixTree::Node*>();
}

bool KvBlocks::is_needed_behind(int32_t group, int32_t blocks, int32_t index) const {
  return index < sink_blocks(group) ||
         index >= first_needed(static_cast<size_t>(group), blocks * block_size_, blocks);
}

BlockRef KvBlocks::take_block(int32_t group) {
  BlockAllocator& allocator = groups_[static_cast<size_t>(group)];
  if (allocator.free() == 0 && !(tree_ && tree_->evict(static_cast<size_t>(group)))) return {};
  return allocator.allocate();
}

// Throws Error unless each block that a hit behind the import needs has arrived or is remembered.
void KvBlocks::check_whole(const PrefixImport& import) const {
  const std::vector<PrefixTree::Node*> path = remembered_path(import.tokens, import.salt);
  for (int32_t group = 0; group < groups(); ++group) {
    const auto g = static_cast<size_t>(group);
    const auto end = static_cast<size_t>(import.blocks);
    for (size_t i = 0; i < end; ++i) {
      if (!is_needed_behind(group, import.blocks, static_cast<int32_t>(i)) || import.arrived[g][i]) continue;
      if (i < path.size() && path[i]->blocks[g] != PrefixTree::kHole) continue;
      throw Error(
          "TransferError",
          concat("[kv_blocks] a prefix must have all of its blocks, got one without block ", i, " of group ",
                 group, ", which was evicted while the others arrived; compute the prefix here"));
    }
  }
}

// Puts the blocks of an import into the tree. Afterwards import.arrived has a reference to the block of each
// node on the path, in each group where the node has one: so a later let_go() lists ancestors behind their
// descendants. `depth` counts the nodes that are held, and `tail` is the last of them, also if it throws.
void KvBlocks::hold_path(PrefixImport& import, PrefixTree::Node** tail, int32_t* depth) {
  std::vector<int32_t> blocks(groups_.size());
  for (; *depth < import.blocks; ++*depth) {
    const auto i = static_cast<size_t>(*depth);
    for (size_t group = 0; group < groups_.size(); ++group) {
      const BlockRef& arrived = import.arrived[group][i];
      blocks[group] = arrived ? arrived.id() : PrefixTree::kHole;
    }
    const auto content = std::span<const int32_t>(import.tokens).subspan(i * block_size_, block_size_);
    *tail = tree_->insert(*tail, content, blocks, import.salt);
    for (size_t group = 0; group < groups_.size(); ++group) {
      const int32_t block = (*tail)->blocks[group];
      if (block != PrefixTree::kHole && block != blocks[group])
        import.arrived[group][i] = tree_->share(*tail, group);
    }
  }
}

void KvBlocks::adopt(PrefixImport& import, const std::function<void(int32_t slot)>& write_state) {
  check_whole(import);
  int32_t depth = 0;
  PrefixTree::Node* tail = nullptr;
  std::exception_ptr failure;
  try {
    hold_path(import, &tail, &depth);
    if (write_state && !tail->snapshot) {
      SequenceBlocks nobody;
      BlockRef slot = slot_for_snapshot(nobody, false);
      write_state(slot.id());
      tree_->set_snapshot(tail, std::move(slot));
      ++snapshot_stats_.taken;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  import.arrived.clear();
  for (size_t group = 0; group < groups_.size(); ++group) tree_->let_go(tail, depth, group);
  if (!failure) return;
  tree_->trim(tail);
  std::rethrow_exception(failure);
}

// Returns a slot for another snapshot of the sequence: that of its last one, a free one, or that of the
// snapshot that was used longest ago.
BlockRef KvBlocks::slot_for_snapshot(SequenceBlocks& held, bool decodes) {
  PrefixTree::Node* last = decodes ? held.decoded : nullptr;
  if (last && last->snapshot && !last->snapshot_used) return tree_->take_snapshot(last);
  if (tree_->snapshots() < max_snapshots_) return take_slot();
  ++snapshot_stats_.evicted;
  return tree_->take_snapshot(tree_->oldest_snapshot());
}

void KvBlocks::take_snapshot(SequenceBlocks& held, int32_t computed, bool decodes) {
  if (!keeps_snapshots() || !held.tail || int64_t{held.published} * block_size_ != computed) return;
  if (held.tail->snapshot) return tree_->touch_snapshot(held.tail);
  try {
    BlockRef slot = slot_for_snapshot(held, decodes);
    held.decoded = nullptr;
    copy_state_(held.state.id(), slot.id());
    tree_->set_snapshot(held.tail, std::move(slot));
  } catch (const std::logic_error&) {
    throw;
  } catch (const std::exception&) {
    ++snapshot_stats_.lost;
    return;
  }
  if (decodes) held.decoded = held.tail;
  ++snapshot_stats_.taken;
}

void KvBlocks::drop_unseen(SequenceBlocks& held, int32_t next) {
  const bool left = std::exchange(held.gone_left, false);
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (shapes_[group].kept > 0) {
      if (next > 0 && (left || next % shapes_[group].interval == 0)) drop_gone(group, held);
      continue;
    }
    BlockTable& table = held.tables[group];
    int32_t needed = first_needed(group, next, held.published), from = table.first();
    while (table.first() < needed) table.drop();
    if (!tree_ || from >= needed) continue;
    PrefixTree::Node* node = held.tail;
    for (int32_t i = held.published - 1; i >= needed; --i) node = node->parent;
    // The deepest block is evicted last, because a hit further on is worth more.
    tree_->let_go_backwards(node, needed - from, group);
  }
}

void KvBlocks::drop_gone(size_t group, SequenceBlocks& held) {
  const std::span<const uint8_t> gone = gone_(static_cast<int32_t>(group), held.state.id());
  BlockTable& table = held.tables[group];
  // A block that is not published yet, for want of memory, goes at a later commit: the tree knows nothing of
  // it.
  PrefixTree::Node* node = tree_ && held.tail ? held.tail->parent : nullptr;
  for (int32_t i = (tree_ ? held.published - 1 : table.size()); i-- > 0;) {
    if (gone[static_cast<size_t>(i)] && table[i] >= 0) {
      table.drop(i);
      if (tree_) tree_->let_go(node, 1, group);
    }
    if (tree_) node = node->parent;
  }
  for (int32_t i = tree_ ? std::max(0, held.published - 1) : table.size(); i < table.size(); ++i)
    held.gone_left |= gone[static_cast<size_t>(i)] && table[i] >= 0;
}

// Gives back the blocks of a group that forgets some, those of the deepest nodes first.
void KvBlocks::release_kept(size_t group, SequenceBlocks& gone) {
  BlockTable table = std::move(gone.tables[group]);
  gone.tables[group] = BlockTable();
  PrefixTree::Node* node = gone.tail;
  for (int32_t i = table.size(); i-- > 0;) {
    const bool held = table[i] >= 0, published = i < gone.published;
    table.truncate(i);
    if (held && published) tree_->let_go(node, 1, group);
    if (published) node = node->parent;
  }
}

void KvBlocks::release(SequenceBlocks& held) {
  SequenceBlocks gone = std::move(held);
  held = SequenceBlocks();
  for (size_t group = 0; group < gone.tables.size(); ++group) {
    if (shapes_[group].kept > 0) {
      release_kept(group, gone);
      continue;
    }
    BlockTable& table = gone.tables[group];
    const int32_t sinks = std::min(table.sinks(), gone.published), first = table.first();
    table = BlockTable();
    PrefixTree::Node* node = gone.tail;
    int32_t published = gone.published;
    if (published > first) tree_->let_go(node, published - first, group);
    // The sink tokens' blocks go last, and so are evicted last: no hit can do without them.
    if (sinks == 0) continue;
    for (; published > sinks; --published) node = node->parent;
    tree_->let_go(node, sinks, group);
  }
}

void KvBlocks::check_states(int64_t sequences) const {
  if (!slots_) return;
  check_equal("slots of states in use", slots_->used(), sequences + snapshots());
  check_equal("references to slots of states", slots_->all_references(), slots_->used());
  check_equal("snapshots of states", std::min(snapshots(), max_snapshots_), snapshots());
}

void KvBlocks::check(int32_t index, int64_t held) const {
  const BlockAllocator& group = groups_[index];
  check_equal("free, idle and used blocks of a group, added up,",
              int64_t{group.free()} + group.idle() + group.used(), group.total());
  check_equal("references to blocks of a group", group.all_references(), held);
  check_equal("blocks kept for the prefix cache", group.all_kept(), tree_ ? tree_->remembered(index) : 0);
  check_equal("idle blocks of a group", group.idle(), tree_ ? tree_->idle(index) : 0);
}

}  // namespace tensorwright
