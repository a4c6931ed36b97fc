#include "runtime/core/cache/prefix_tree.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tensorwright {

PrefixTree::PrefixTree(std::deque<BlockAllocator>& groups, int32_t block_size, Hash hash,
                       std::vector<int32_t> windows)
    : groups_(groups), block_size_(block_size), hash_(hash), windows_(std::move(windows)) {
  windows_.resize(groups.size());
  idle_.resize(groups.size());
  rest_.resize(groups.size());
  remembered_.resize(groups.size());
}

PrefixTree::~PrefixTree() {
  leaving_ = nullptr;
  log_ = nullptr;
  for (auto& [key, node] : nodes_) {
    for (size_t group = 0; group < groups_.size(); ++group) forget(node.get(), group);
  }
}

uint64_t PrefixTree::key_of(const Node* parent, std::string_view salt,
                            std::span<const int32_t> tokens) const {
  return hash_(parent ? parent->number : salt.empty() ? 0 : secret_hash(salt), tokens);
}

// salt: compared for a first block only.
PrefixTree::Node* PrefixTree::find(const Node* parent, std::string_view salt, std::span<const int32_t> tokens,
                                   uint64_t key) const {
  auto [first, last] = nodes_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    Node* node = it->second.get();
    if (node->parent != parent || (!parent && node->salt != salt)) continue;
    if (std::ranges::equal(node->tokens, tokens)) return node;
  }
  return nullptr;
}

std::vector<PrefixTree::Node*> PrefixTree::match(std::span<const int32_t> tokens,
                                                 std::string_view salt) const {
  std::vector<Node*> path;
  Node* parent = nullptr;
  for (size_t at = 0; at + block_size_ <= tokens.size(); at += block_size_) {
    auto block = tokens.subspan(at, block_size_);
    Node* node = find(parent, salt, block, key_of(parent, salt, block));
    if (!node) break;
    path.push_back(node);
    parent = node;
  }
  return path;
}

// Makes a node that is not in the tree yet and has no number.
std::unique_ptr<PrefixTree::Node> PrefixTree::make_node(Node* parent, std::span<const int32_t> tokens,
                                                        std::string_view salt, uint64_t key) const {
  auto node = std::make_unique<Node>();
  node->parent = parent;
  node->first = parent ? parent->first : node.get();
  if (!parent) node->salt = salt;
  if (!parent && log_) node->origin = origin_of(*archive_, salt);
  node->key = key;
  if (archive_) node->archived = archive_->child(parent ? parent->archived : archive_->root(salt), tokens);
  node->tokens.assign(tokens.begin(), tokens.end());
  node->blocks.assign(groups_.size(), kHole);
  node->idle.assign(groups_.size(), 0);
  node->places.resize(groups_.size());
  return node;
}

PrefixTree::Node* PrefixTree::insert(Node* parent, std::span<const int32_t> tokens,
                                     std::span<const int32_t> blocks, std::string_view salt) {
  if (tokens.size() != static_cast<size_t>(block_size_) || blocks.size() != groups_.size()) {
    throw std::logic_error("[prefix_tree] a node holds one full block per cache group");
  }
  uint64_t key = key_of(parent, salt, tokens);
  Node* node = find(parent, salt, tokens, key);
  if (!node) {
    auto owned = make_node(parent, tokens, salt, key);
    node = owned.get();
    std::vector<std::list<Node*>> places(groups_.size());
    for (std::list<Node*>& place : places) place.push_back(node);
    std::map<uint64_t, const Node*> numbered;
    if (log_) numbered.emplace(numbers_ + 1, node);
    nodes_.emplace(key, std::move(owned));
    // Nothing throws from here on.
    node->number = ++numbers_;
    by_number_.merge(numbered);
    for (size_t group = 0; group < groups_.size(); ++group) {
      node->places[group] = places[group].begin();
      rest_[group].splice(rest_[group].end(), places[group]);
    }
    if (parent) ++parent->children;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (node->blocks[group] != kHole || blocks[group] == kHole) continue;
    groups_[group].keep(blocks[group]);
    node->blocks[group] = blocks[group];
    ++remembered_[group];
    if (log_)
      log_->add_stored(static_cast<int32_t>(group), node->archived, name_of(parent), node->first->origin,
                       node->tokens);
  }
  return node;
}

std::optional<ArchiveKey> PrefixTree::name_of(const Node* node) {
  return node ? std::optional(node->archived) : std::nullopt;
}

void PrefixTree::visit_from(uint64_t number, const std::function<bool(const Node&)>& visit) const {
  for (auto at = by_number_.upper_bound(number); at != by_number_.end(); ++at) {
    if (!visit(*at->second)) return;
  }
}

BlockRef PrefixTree::share(Node* node, size_t group) {
  set_held(node, group);
  return groups_[group].share(node->blocks[group]);
}

void PrefixTree::set_idle(Node* node, size_t group, std::list<Node*>::iterator before) {
  idle_[group].splice(before, rest_[group], node->places[group]);
  node->idle[group] = 1;
}

void PrefixTree::set_held(Node* node, size_t group) {
  if (node->idle[group]) rest_[group].splice(rest_[group].end(), idle_[group], node->places[group]);
  node->idle[group] = 0;
}

void PrefixTree::let_go(Node* node, int32_t count, size_t group) {
  for (; count-- > 0; node = node->parent) {
    if (node->blocks[group] == kHole) continue;
    if (groups_[group].references(node->blocks[group]) == 0) set_idle(node, group, idle_[group].end());
  }
}

void PrefixTree::let_go_backwards(Node* node, int32_t count, size_t group) {
  auto before = idle_[group].end();
  for (; count-- > 0; node = node->parent) {
    if (groups_[group].references(node->blocks[group]) > 0) continue;
    set_idle(node, group, before);
    before = node->places[group];
  }
}

void PrefixTree::touch(Node* node, size_t group) {
  for (; node; node = node->parent) {
    if (node->idle[group]) idle_[group].splice(idle_[group].end(), idle_[group], node->places[group]);
  }
}

bool PrefixTree::evict(size_t group) {
  if (idle_[group].empty()) return false;
  Node* node = idle_[group].front();
  ++evictions_;
  if (windows_[group] == 0) {
    prune(erase(node));
  } else {
    forget(node, group);
    prune(node);
  }
  return true;
}

void PrefixTree::visit_idle(size_t group, const std::function<bool(const Node&)>& visit) const {
  for (auto node = idle_[group].rbegin(); node != idle_[group].rend(); ++node) {
    if (!visit(**node)) return;
  }
}

void PrefixTree::set_snapshot(Node* node, BlockRef slot) {
  if (node->snapshot) throw std::logic_error("[prefix_tree] a node has one snapshot at most");
  node->snapshot_place = snapshots_.insert(snapshots_.end(), node);
  node->snapshot = std::move(slot);
  node->snapshot_used = false;
}

BlockRef PrefixTree::take_snapshot(Node* node) {
  snapshots_.erase(node->snapshot_place);
  return std::move(node->snapshot);
}

// Forgets the block of a node in one group. No hit can end at the node then, so its snapshot goes too.
void PrefixTree::forget(Node* node, size_t group) {
  if (node->snapshot) take_snapshot(node);
  set_held(node, group);
  if (node->blocks[group] != kHole) {
    if (leaving_) leaving_(*node, group);
    if (log_) log_->add(false, CacheTier::kCache, static_cast<int32_t>(group), node->archived);
    groups_[group].forget(node->blocks[group]);
    --remembered_[group];
  }
  node->blocks[group] = kHole;
}

// Erases a leaf and returns its parent. If a sequence held a block of the leaf, the leaf would be its last
// published block, which it keeps in every group. So no sequence holds one.
PrefixTree::Node* PrefixTree::erase(Node* node) {
  if (node->children > 0) throw std::logic_error("[prefix_tree] only a leaf can be erased");
  for (size_t group = 0; group < groups_.size(); ++group) {
    forget(node, group);
    rest_[group].erase(node->places[group]);
  }
  Node* parent = node->parent;
  if (parent) --parent->children;
  by_number_.erase(node->number);
  auto [first, last] = nodes_.equal_range(node->key);
  nodes_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == node; }));
  return parent;
}

// Erases leaves with holes, because no hit can end there. When a leaf is erased, its parent may have become
// such a leaf.
void PrefixTree::prune(Node* node) {
  while (node && node->children == 0 && std::ranges::find(node->blocks, kHole) != node->blocks.end())
    node = erase(node);
}

}  // namespace tensorwright
