// What the KV cache remembers: a tree whose nodes are full blocks of tokens, each under the block before it.
//
// A hash only narrows the search; the tokens are compared, so a collision costs time and never a wrong hit.
// Each salt has roots of its own, and is compared too: sequences of two salts never share a block.
//
// Idle blocks (remembered, held by nobody) are listed per cache group in the order in which they were let go,
// the oldest first to be evicted. Without a window, whoever holds a node's block holds its ancestors' too and
// lets go of the deepest first, so the oldest idle block is that of a leaf, and its node goes with it. In a
// group with a window a block goes alone and leaves a hole in its node.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/core/cache/block_allocator.h"
#include "runtime/core/cache/secret_hash.h"

namespace tensorwright {

class PrefixTree {
 public:
  static constexpr int32_t kHole = -1;
  struct Node {
    Node* parent = nullptr;  // null for the first block of a sequence
    uint64_t number = 0;     // unlike the address never used again
    uint64_t key = 0;        // hash of parent and tokens
    int32_t children = 0;
    std::string salt;             // of a first block; those below it have its
    std::vector<int32_t> tokens;  // [block_size]
    std::vector<int32_t> blocks;  // [cache groups], kHole if evicted
    std::vector<uint8_t> idle;    // [cache groups], whether the block is remembered and held by nobody
    std::vector<std::list<Node*>::iterator> places;  // [cache groups], in the tree's idle_ or rest_
  };
  using Hash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);

  // `groups` outlives the tree; windows: per group, 0 for none, all 0 if empty. `hash` is a parameter so that
  // tests can make it collide.
  PrefixTree(std::deque<BlockAllocator>& groups, int32_t block_size, Hash hash = secret_hash,
             std::vector<int32_t> windows = {});
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest path of full blocks that `tokens` starts with, first block first, holes and all.
  std::vector<Node*> match(std::span<const int32_t> tokens, std::string_view salt = {}) const;
  // The node of `tokens` [block_size] under `parent`, or of a first block with this salt; made if there is
  // none. `blocks` [groups] (all used) are remembered where it has none. What throws changes nothing.
  Node* insert(Node* parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks,
               std::string_view salt = {});
  // One more reference to a node's block. Takes no memory.
  BlockRef share(Node* node, size_t group);
  // For whoever gave back a reference to the blocks of this node and of those above it, `count` in all: the
  // deepest is the first to be evicted. Takes no memory.
  void let_go(Node* node, int32_t count, size_t group);
  // The same, but the deepest is the last to be evicted.
  void let_go_backwards(Node* node, int32_t count, size_t group);
  // Forgets the block of the group that has been idle longest; false if there is none.
  bool evict(size_t group);

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  int64_t evictions() const { return evictions_; }
  int32_t remembered(size_t group) const { return remembered_[group]; }  // its blocks in all nodes
  int32_t idle(size_t group) const { return static_cast<int32_t>(idle_[group].size()); }

 private:
  uint64_t key_of(const Node* parent, std::string_view salt, std::span<const int32_t> tokens) const;
  Node* find(const Node* parent, std::string_view salt, std::span<const int32_t> tokens, uint64_t key) const;
  std::unique_ptr<Node> make_node(Node* parent, std::span<const int32_t> tokens, std::string_view salt,
                                  uint64_t key) const;
  void set_idle(Node* node, size_t group, std::list<Node*>::iterator before);
  void set_held(Node* node, size_t group);
  void forget(Node* node, size_t group);
  Node* erase(Node* node);
  void prune(Node* node);

  std::deque<BlockAllocator>& groups_;
  int32_t block_size_;
  Hash hash_;
  std::vector<int32_t> windows_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // flat: no recursion however deep
  // Per group, every node once: in idle_, the block let go first at the front, or in rest_. A node moves
  // between them without taking memory, so blocks can be given back when there is none.
  std::vector<std::list<Node*>> idle_, rest_;
  std::vector<int32_t> remembered_;  // per group
  uint64_t numbers_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
