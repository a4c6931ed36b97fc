// The blocks of all cache groups and what is remembered of them. Every group's tables grow together: block i
// of each group holds the same positions, so one number says how much room there is.
#ifndef TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/block_allocator.h"
#include "runtime/core/prefix_tree.h"

namespace tensorwright {

// What one sequence holds. Freed when it goes.
struct SequenceBlocks {
  std::vector<BlockTable> tables;    // [cache groups]
  PrefixTree::Node* tail = nullptr;  // node of its last block in the tree
  int32_t published = 0;             // leading blocks that are in the tree
  int32_t size() const { return tables.empty() ? 0 : tables[0].size(); }  // blocks per group
};

class KvBlocks {
 public:
  using Copy = std::function<void(int32_t group, int32_t from, int32_t to)>;

  KvBlocks(int32_t groups, int32_t blocks, int32_t block_size, bool prefix_cache,
           PrefixTree::Hash hash = PrefixTree::default_hash);
  // Copies a block, before whatever is computed later. Needed by those that fork.
  void on_copy(Copy copy) { copy_ = std::move(copy); }

  int32_t block_size() const { return block_size_; }
  int32_t blocks_for(int64_t positions) const {
    return static_cast<int32_t>((positions + block_size_ - 1) / block_size_);
  }
  // Per group: blocks that grow can still hand out, by eviction if need be.
  int32_t available() const { return groups_[0].free() + groups_[0].idle(); }
  const BlockAllocator& group(int32_t index) const { return groups_[index]; }
  int32_t groups() const { return static_cast<int32_t>(groups_.size()); }
  int64_t evictions() const { return tree_ ? tree_->evictions() : 0; }

  // The longest remembered prefix of full blocks that leaves at least one token to compute.
  struct Match {
    std::vector<PrefixTree::Node*> path;
    int32_t idle = 0;  // of these blocks, those that attach would take out of available()
  };
  Match match(std::span<const int32_t> tokens) const;
  // Gives an empty sequence the matched blocks.
  void attach(const Match& match, SequenceBlocks& held);
  // The same blocks for another sequence.
  SequenceBlocks fork(const SequenceBlocks& held) const;
  // Blocks that it takes to write positions [from, to): new ones, and a copy if the first of those written is
  // shared with a fork.
  int32_t missing(const SequenceBlocks& held, int32_t from, int32_t to) const;
  // Makes these positions writable; false, and nothing changed but evictions, if the blocks are not
  // available.
  bool make_writable(SequenceBlocks& held, int32_t from, int32_t to);
  void shrink(SequenceBlocks& held, int32_t blocks);
  // Remembers the full blocks of `tokens`, all of them computed. A block that the tree already has by the
  // same tokens is given up for the tree's: same bits, and every ancestor of what a sequence holds stays
  // held.
  void publish(SequenceBlocks& held, std::span<const int32_t> tokens);
  void release(SequenceBlocks& held);

 private:
  std::deque<BlockAllocator> groups_;  // a deque: allocators don't move
  int32_t block_size_;
  std::optional<PrefixTree> tree_;  // absent if prefix_cache is off
  Copy copy_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_
