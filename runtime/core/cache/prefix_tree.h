// Remembers the contents of the KV cache, as a tree whose nodes are full blocks of tokens, each under the
// block before it.
//
// A hash only narrows the search; the tokens are compared, so a collision costs time and never a wrong hit.
// Each salt has roots of its own, and salts are compared too, so sequences of two salts never share a block.
//
// Idle blocks (remembered, and held by no sequence) are listed per cache group in the order in which they
// were given back; the oldest is evicted first. In a group without a window, a sequence that holds a node's
// block holds the blocks of the node's ancestors too, and gives back the deepest first. So the oldest idle
// block belongs to a leaf, and the leaf is erased with it. In a group with a window, a block is evicted alone
// and leaves a hole in its node.
//
// A node may have a snapshot: a slot that holds the states of the recurrent layers behind the node's last
// token. A snapshot goes with a block of its node, or when it is the one that was used longest ago and its
// slot is wanted for another.
//
// With archive(), whoever keeps contents elsewhere is told of each block before the tree forgets it. With
// log_to(), whoever follows the tree from outside is told of each block that it remembers and forgets.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/cache/block_allocator.h"
#include "runtime/core/cache/cache_log.h"
#include "runtime/core/cache/secret_hash.h"

namespace tensorwright {

class PrefixTree {
 public:
  static constexpr int32_t kHole = -1;
  struct Node {
    Node* parent = nullptr;  // null for the first block of a sequence
    uint64_t number = 0;     // unlike an address, a number is never used again
    uint64_t key = 0;        // hash of parent and tokens
    ArchiveKey archived;     // the name of the contents elsewhere; set only with archive()
    int32_t priority = 0;    // the highest of the requests that computed it
    int32_t children = 0;
    const Node* first = nullptr;  // the first block of its sequence, maybe itself
    std::string salt;             // set in a first block only; it holds for the blocks below too
    CacheOrigin origin;           // what log_to() tells of the salt; likewise
    std::vector<int32_t> tokens;  // [block_size]
    std::vector<int32_t> blocks;  // [cache groups], kHole: evicted
    std::vector<uint8_t> idle;    // [cache groups], whether the block is remembered and no sequence holds it
    std::vector<std::list<Node*>::iterator> places;  // [cache groups], in the tree's idle_ or rest_
    BlockRef snapshot;                               // a slot of states; empty: the node has no snapshot
    bool snapshot_used = false;                      // a sequence started from the snapshot
    std::list<Node*>::iterator snapshot_place;       // in the tree's snapshots_, if there is a snapshot
  };
  using Hash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);
  using Leaving = std::function<void(const Node& node, size_t group)>;

  // `groups` must outlive the tree. windows: [cache groups], 0 means no window; an empty list means no
  // windows. `hash` is a parameter so that tests can make it collide.
  PrefixTree(std::deque<BlockAllocator>& groups, int32_t block_size, Hash hash = secret_hash,
             std::vector<int32_t> windows = {});
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Names the contents by `hash`, which must outlive the tree, and calls `leaving`, if there is one, before a
  // block is forgotten, except when the tree is destroyed; it must not throw. archive() must be called before
  // the first insert().
  void archive(const ArchiveHash& hash, Leaving leaving) {
    archive_ = &hash;
    leaving_ = std::move(leaving);
  }
  // Tells `log`, which must outlive the tree, of each block that is remembered or forgotten, except when the
  // tree is destroyed. It must be called behind archive(), and before the first insert().
  void log_to(CacheLog& log) { log_ = &log; }
  // Returns the name of a node's content, with archive(); empty for no node.
  static std::optional<ArchiveKey> name_of(const Node* node);
  // With log_to(): calls `visit` with the nodes whose numbers are greater than `number`, in their order,
  // until it returns false. A node comes behind its parent.
  void visit_from(uint64_t number, const std::function<bool(const Node& node)>& visit) const;
  // Calls `visit` with the idle blocks of a group, the one that is evicted last first, until it returns
  // false.
  void visit_idle(size_t group, const std::function<bool(const Node& node)>& visit) const;

  // Returns the longest path of full blocks that `tokens` starts with, the first block first. Its nodes may
  // have holes.
  std::vector<Node*> match(std::span<const int32_t> tokens, std::string_view salt = {}) const;
  // Returns the node of `tokens` [block_size] under `parent`, or without a parent that of a first block with
  // this salt, and makes it if there is none. Where the node has a hole, it remembers the block of `blocks`
  // [groups], which must be used, or kHole, which leaves the hole. If it throws, nothing has changed.
  Node* insert(Node* parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks,
               std::string_view salt = {});
  // Returns one more reference to a node's block. Takes no memory.
  BlockRef share(Node* node, size_t group);
  // Must be called after references to the blocks of this node and of its ancestors, `count` nodes in all,
  // were given back. Lists those that are idle now; the deepest is the first to be evicted. Holes are passed
  // over. Takes no memory.
  void let_go(Node* node, int32_t count, size_t group);
  // Does the same, but the deepest is the last to be evicted.
  void let_go_backwards(Node* node, int32_t count, size_t group);
  // Makes the idle blocks of a path, which ends at `node`, the last to be evicted, the deepest of them first.
  void touch(Node* node, size_t group);
  // Erases the node and its ancestors as far as they are leaves with holes; no sequence may hold them.
  void trim(Node* node) { prune(node); }
  // Forgets the block of the group that has been idle longest. Returns false if no block is idle.
  bool evict(size_t group);

  // Gives a node without a snapshot one, the last to be evicted. If it throws, nothing has changed.
  void set_snapshot(Node* node, BlockRef slot);
  // Takes a node's snapshot away and returns its slot.
  BlockRef take_snapshot(Node* node);
  // Makes a node's snapshot the last to be evicted.
  void touch_snapshot(Node* node) { snapshots_.splice(snapshots_.end(), snapshots_, node->snapshot_place); }
  // Returns the node of the snapshot that was used longest ago, or null if there is none.
  Node* oldest_snapshot() const { return snapshots_.empty() ? nullptr : snapshots_.front(); }
  int32_t snapshots() const { return static_cast<int32_t>(snapshots_.size()); }

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  int64_t evictions() const { return evictions_; }
  int32_t remembered(size_t group) const { return remembered_[group]; }  // blocks of the group in all nodes
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
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // flat, to avoid recursion
  // Per group, every node is either in idle_, where the block that was given back first is at the front, or
  // in rest_. A node moves between the two lists without taking memory, so blocks can be given back when
  // there is no memory.
  std::vector<std::list<Node*>> idle_, rest_;
  std::vector<int32_t> remembered_;  // per group
  std::list<Node*> snapshots_;       // the nodes with snapshots; the one used longest ago is at the front
  const ArchiveHash* archive_ = nullptr;
  Leaving leaving_;
  CacheLog* log_ = nullptr;
  std::map<uint64_t, const Node*> by_number_;  // all nodes, with log_to()
  uint64_t numbers_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_TREE_H_
