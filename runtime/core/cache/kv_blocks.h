// The blocks of all cache groups and what is remembered of them. Every group's tables grow together: entry i
// of each holds the same positions. A group with a window drops the blocks that no later position sees.
#ifndef TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/cache/block_allocator.h"
#include "runtime/core/cache/group_shape.h"
#include "runtime/core/cache/prefix_tree.h"

namespace tensorwright {

// What one sequence holds. Freed when it goes.
struct SequenceBlocks {
  std::vector<BlockTable> tables;    // [cache groups]
  PrefixTree::Node* tail = nullptr;  // node of its last block in the tree
  int32_t published = 0;             // leading blocks that are in the tree
  int32_t size() const { return tables.empty() ? 0 : tables[0].size(); }  // entries per group
};

class KvBlocks {
 public:
  using Copy = std::function<void(int32_t group, int32_t from, int32_t to)>;

  KvBlocks(std::vector<GroupShape> groups, int32_t block_size, bool prefix_cache,
           PrefixTree::Hash hash = secret_hash);
  // Groups alike, without windows.
  KvBlocks(int32_t groups, int32_t blocks, int32_t block_size, bool prefix_cache,
           PrefixTree::Hash hash = secret_hash)
      : KvBlocks(std::vector<GroupShape>(groups, {blocks}), block_size, prefix_cache, hash) {}
  // Copies a block, before whatever is computed later. Needed by those that fork.
  void on_copy(Copy copy) { copy_ = std::move(copy); }

  int32_t block_size() const { return block_size_; }
  int32_t blocks_for(int64_t positions) const {
    return static_cast<int32_t>((positions + block_size_ - 1) / block_size_);
  }
  // Blocks of a group that can still be handed out, by eviction if need be.
  int32_t available(int32_t group = 0) const { return groups_[group].free() + groups_[group].idle(); }
  const BlockAllocator& group(int32_t index) const { return groups_[index]; }
  const GroupShape& shape(int32_t group) const { return shapes_[group]; }
  int32_t groups() const { return static_cast<int32_t>(groups_.size()); }
  int64_t evictions() const { return tree_ ? tree_->evictions() : 0; }

  // The longest remembered prefix of full blocks, by a sequence of the same salt, that leaves at least one
  // token to compute. Of a group with a window, only the blocks are needed that a position behind the prefix
  // sees.
  struct Match {
    std::vector<PrefixTree::Node*> path;
    std::vector<int32_t> first;  // [cache groups]: first entry that attach fills
    std::vector<int32_t> idle;   // [cache groups]: blocks that attach would take out of available()
  };
  Match match(std::span<const int32_t> tokens, std::string_view salt = {}) const;
  // Gives an empty sequence the matched blocks. What throws changes nothing.
  void attach(const Match& match, SequenceBlocks& held);
  // The same blocks for another sequence.
  SequenceBlocks fork(const SequenceBlocks& held) const;
  // Blocks of a group that it takes to write positions [from, to): new ones, and a copy if the first of those
  // written is shared with a fork.
  int32_t missing(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const;
  // The same, little by little: a window lets go of as many as it takes.
  int32_t outstanding(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const;
  // How far, up to `to`, positions from `from` on could be made writable now; from if not one could.
  int32_t reach(const SequenceBlocks& held, int32_t from, int32_t to) const;
  // Makes these positions writable; false, and nothing changed, if the blocks are not available. What throws
  // leaves the sequence as many blocks as it had.
  bool make_writable(SequenceBlocks& held, int32_t from, int32_t to);
  void shrink(SequenceBlocks& held, int32_t blocks);
  // Remembers the full blocks of `tokens`, all of them computed. A block that the tree already has by the
  // same tokens is given up for the tree's: same bits, and every ancestor of what a sequence holds stays
  // held. What throws bad_alloc leaves the rest of them to the next call.
  void publish(SequenceBlocks& held, std::span<const int32_t> tokens, std::string_view salt = {});
  // Lets go of what no position from `next` on sees, but for the last published block: it keeps the
  // sequence's place in the tree. Takes no memory, nor does release().
  void drop_unseen(SequenceBlocks& held, int32_t next);
  void release(SequenceBlocks& held);
  // Throws InvariantError unless every block of a group is free, idle or used, and these agree with the tree
  // and with `held`, the references that sequences have to blocks of the group.
  void check(int32_t group, int64_t held) const;

 private:
  int32_t first_needed(size_t group, int32_t next, int32_t published) const;
  bool copies(size_t group, const SequenceBlocks& held, int32_t from) const;
  bool ends_hit(const std::vector<PrefixTree::Node*>& path, size_t length) const;

  std::vector<GroupShape> shapes_;
  std::deque<BlockAllocator> groups_;  // a deque: allocators don't move
  int32_t block_size_;
  std::optional<PrefixTree> tree_;  // absent if prefix_cache is off
  Copy copy_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_
