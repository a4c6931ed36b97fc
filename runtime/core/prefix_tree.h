// What the KV cache remembers: a tree whose nodes are full blocks of tokens, each under the block before it.
//
// A hash only narrows the search; the tokens are compared, so a collision costs time and never a wrong hit.
// A sequence that refers to a node's blocks refers to all its ancestors' too (KvBlocks sees to it), so an
// unreferenced node has only unreferenced descendants, and evicting leaves can free every idle block.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/core/block_allocator.h"

namespace tensorwright {

class PrefixTree {
 public:
  struct Node {
    Node* parent = nullptr;  // null for the first block of a sequence
    uint64_t number = 0;     // unlike the address never used again
    uint64_t key = 0;        // hash of parent and tokens
    uint64_t last_use = 0;   // tick of its insertion, or of the last release after it
    int32_t children = 0;
    std::vector<int32_t> tokens;  // [block_size]
    std::vector<int32_t> blocks;  // [cache groups]
  };
  using Hash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);
  static uint64_t default_hash(uint64_t parent, std::span<const int32_t> tokens);

  // `groups` outlives the tree. `hash` is a parameter so that tests can make it collide.
  PrefixTree(std::deque<BlockAllocator>& groups, int32_t block_size, Hash hash = default_hash);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest path of full blocks that `tokens` starts with, first block first. Not a use: see touch.
  std::vector<Node*> match(std::span<const int32_t> tokens) const;
  // The node of `tokens` [block_size] under `parent`; made from `blocks` [groups] (all used) if there is
  // none.
  Node* insert(Node* parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks);
  // For a sequence that lets go of the node. What is held is never evicted, so that is soon enough.
  void touch(Node* node);
  // Forgets the least recently used leaf that nobody refers to; false if there is none.
  // Visits at most one node per sequence before it: a sequence holds at most one leaf.
  bool evict();

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  int64_t evictions() const { return evictions_; }

 private:
  Node* find(const Node* parent, std::span<const int32_t> tokens, uint64_t key) const;
  void forget_blocks(const Node& node);
  void erase(Node* node);

  std::deque<BlockAllocator>& groups_;
  int32_t block_size_;
  Hash hash_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // flat: no recursion however deep
  std::map<uint64_t, Node*> leaves_;                                // by last_use, which is unique
  uint64_t tick_ = 0;
  uint64_t numbers_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
