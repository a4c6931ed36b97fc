#include "runtime/core/kv_blocks.h"

#include <algorithm>
#include <stdexcept>

namespace tensorwright {

KvBlocks::KvBlocks(int32_t groups, int32_t blocks, int32_t block_size, bool prefix_cache,
                   PrefixTree::Hash hash)
    : block_size_(block_size) {
  for (int32_t group = 0; group < groups; ++group) groups_.emplace_back(blocks);
  if (prefix_cache) tree_.emplace(groups_, block_size, hash);
}

KvBlocks::Match KvBlocks::match(std::span<const int32_t> tokens) const {
  Match match;
  if (!tree_ || tokens.empty()) return match;
  match.path = tree_->match(tokens.first(tokens.size() - 1));
  for (PrefixTree::Node* node : match.path) match.idle += groups_[0].references(node->blocks[0]) == 0;
  return match;
}

void KvBlocks::attach(const Match& match, SequenceBlocks& held) {
  if (held.size() != 0) throw std::logic_error("[kv_blocks] only an empty sequence can be given a prefix");
  held.tables.resize(groups_.size());
  for (PrefixTree::Node* node : match.path) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      held.tables[group].append(groups_[group].share(node->blocks[group]));
    }
  }
  held.published = static_cast<int32_t>(match.path.size());
  held.tail = match.path.empty() ? nullptr : match.path.back();
}

SequenceBlocks KvBlocks::fork(const SequenceBlocks& held) const {
  SequenceBlocks other;
  for (const BlockTable& table : held.tables) other.tables.push_back(table.share());
  other.tail = held.tail;
  other.published = held.published;
  return other;
}

int32_t KvBlocks::missing(const SequenceBlocks& held, int32_t from, int32_t to) const {
  int32_t first = from / block_size_, size = held.size();
  bool shared = false;  // in all groups, unless a copy failed after that of another group
  for (size_t group = 0; first < size && group < groups_.size(); ++group)
    shared |= groups_[group].references(held.tables[group][first]) > 1;
  return (shared ? 1 : 0) + std::max(0, blocks_for(to) - size);
}

bool KvBlocks::make_writable(SequenceBlocks& held, int32_t from, int32_t to) {
  held.tables.resize(groups_.size());
  int32_t needed = missing(held, from, to);
  if (needed > available()) return false;
  while (groups_[0].free() < needed) {
    if (!tree_->evict()) throw std::logic_error("[kv_blocks] an idle block must be evictable");
  }
  int32_t first = from / block_size_, size = held.size();
  for (size_t group = 0; group < groups_.size(); ++group) {
    auto copy = [&](int32_t source, int32_t target) { copy_(static_cast<int32_t>(group), source, target); };
    if (first < size) held.tables[group].make_writable(first, groups_[group], copy);
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

void KvBlocks::publish(SequenceBlocks& held, std::span<const int32_t> tokens) {
  if (!tree_) return;
  std::vector<int32_t> blocks(groups_.size());
  while (static_cast<size_t>(held.published + 1) * block_size_ <= tokens.size()) {
    int32_t index = held.published;
    for (size_t group = 0; group < groups_.size(); ++group) blocks[group] = held.tables[group][index];
    auto content = tokens.subspan(static_cast<size_t>(index) * block_size_, block_size_);
    held.tail = tree_->insert(held.tail, content, blocks);
    for (size_t group = 0; group < groups_.size(); ++group) {
      int32_t known = held.tail->blocks[group];
      if (known != blocks[group]) held.tables[group].replace(index, groups_[group].share(known));
    }
    ++held.published;
  }
}

void KvBlocks::release(SequenceBlocks& held) {
  if (held.tail) tree_->touch(held.tail);
  held = SequenceBlocks();
}

}  // namespace tensorwright
