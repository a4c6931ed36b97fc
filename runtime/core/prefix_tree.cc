#include "runtime/core/prefix_tree.h"

#include <algorithm>
#include <stdexcept>

namespace tensorwright {

uint64_t PrefixTree::default_hash(uint64_t parent, std::span<const int32_t> tokens) {
  uint64_t h = parent * 0x9e3779b97f4a7c15u + tokens.size();
  for (int32_t token : tokens) {
    h = (h ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

PrefixTree::PrefixTree(std::deque<BlockAllocator>& groups, int32_t block_size, Hash hash)
    : groups_(groups), block_size_(block_size), hash_(hash) {}

PrefixTree::~PrefixTree() {
  for (auto& [key, node] : nodes_) forget_blocks(*node);
}

PrefixTree::Node* PrefixTree::find(const Node* parent, std::span<const int32_t> tokens, uint64_t key) const {
  auto [first, last] = nodes_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    Node* node = it->second.get();
    if (node->parent == parent && std::ranges::equal(node->tokens, tokens)) return node;
  }
  return nullptr;
}

std::vector<PrefixTree::Node*> PrefixTree::match(std::span<const int32_t> tokens) const {
  std::vector<Node*> path;
  Node* parent = nullptr;
  for (size_t at = 0; at + block_size_ <= tokens.size(); at += block_size_) {
    auto block = tokens.subspan(at, block_size_);
    Node* node = find(parent, block, hash_(parent ? parent->number : 0, block));
    if (!node) break;
    path.push_back(node);
    parent = node;
  }
  return path;
}

PrefixTree::Node* PrefixTree::insert(Node* parent, std::span<const int32_t> tokens,
                                     std::span<const int32_t> blocks) {
  if (tokens.size() != static_cast<size_t>(block_size_) || blocks.size() != groups_.size()) {
    throw std::logic_error("[prefix_tree] a node holds one full block per cache group");
  }
  uint64_t key = hash_(parent ? parent->number : 0, tokens);
  if (Node* node = find(parent, tokens, key)) return node;
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->parent = parent;
  node->number = ++numbers_;
  node->key = key;
  node->last_use = ++tick_;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->blocks.assign(blocks.begin(), blocks.end());
  nodes_.emplace(key, std::move(owned));
  leaves_.emplace(node->last_use, node);
  for (size_t group = 0; group < groups_.size(); ++group) groups_[group].keep(blocks[group]);
  if (parent && parent->children++ == 0) leaves_.erase(parent->last_use);
  return node;
}

void PrefixTree::touch(Node* node) {
  if (node->children == 0) leaves_.erase(node->last_use);
  node->last_use = ++tick_;
  if (node->children == 0) leaves_.emplace(node->last_use, node);
}

bool PrefixTree::evict() {
  for (auto [last_use, node] : leaves_) {
    if (groups_[0].references(node->blocks[0]) > 0) continue;
    erase(node);
    ++evictions_;
    return true;
  }
  return false;
}

void PrefixTree::forget_blocks(const Node& node) {
  for (size_t group = 0; group < groups_.size(); ++group) groups_[group].forget(node.blocks[group]);
}

void PrefixTree::erase(Node* node) {
  forget_blocks(*node);
  leaves_.erase(node->last_use);
  if (Node* parent = node->parent; parent && --parent->children == 0) {
    // Its own last use may be older than the child's; it is then the next to go, as it should be.
    leaves_.emplace(parent->last_use, parent);
  }
  auto [first, last] = nodes_.equal_range(node->key);
  nodes_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == node; }));
}

}  // namespace tensorwright
