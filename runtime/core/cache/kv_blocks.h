// Owns the blocks of all cache groups and remembers their contents. The tables of all groups grow together:
// entry i of each holds the same positions. A group with a window drops the blocks that no later position
// sees; those of its sink tokens it keeps. A group whose sequences keep so many blocks drops those that the
// executor says are gone, which the sequence's states say: behind a prefix, its snapshot says which blocks
// are needed.
//
// If the model has recurrent layers, a sequence also has a slot for its states, from attach() to release().
// Blocks of a prefix are then of no use without the states at its end. These are kept as snapshots, each in a
// slot of its own, at nodes of the prefix tree, and a hit ends only where there is one.
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
#include "runtime/core/cache/prefix_import.h"
#include "runtime/core/cache/prefix_tree.h"

namespace tensorwright {

// The blocks that one sequence holds. The destructor gives them back.
struct SequenceBlocks {
  std::vector<BlockTable> tables;    // [cache groups]
  BlockRef state;                    // the slot of the states; empty if the model has none
  PrefixTree::Node* tail = nullptr;  // the node of its last published block
  int32_t published = 0;             // the number of leading blocks that are in the tree
  // The node whose snapshot this sequence took last while it decoded: `tail` or above it, so it is there as
  // long as the sequence holds `tail`. Null if there is none.
  PrefixTree::Node* decoded = nullptr;
  // Blocks that a budget forgets are held still, because they were not in the tree at the decision.
  bool gone_left = false;
  int32_t size() const { return tables.empty() ? 0 : tables[0].size(); }  // entries per group
};

// How many slots there are for the states of recurrent layers.
struct StateShape {
  int32_t sequences = 0;  // that run at once; 0: the model has no states
  int32_t snapshots = 0;  // kept for later sequences; 0: no prefix is reused
};

struct SnapshotStats {
  int64_t taken = 0, evicted = 0;
  int64_t lost = 0;  // not taken, because there was no memory or the copy failed
};

class KvBlocks {
 public:
  using Copy = std::function<void(int32_t group, int32_t from, int32_t to)>;
  using CopyState = std::function<void(int32_t from, int32_t to)>;
  using Gone = std::function<std::span<const uint8_t>(int32_t group, int32_t slot)>;

  KvBlocks(std::vector<GroupShape> groups, int32_t block_size, bool prefix_cache,
           PrefixTree::Hash hash = secret_hash, StateShape states = {});
  // Makes groups that are all alike and have no windows.
  KvBlocks(int32_t groups, int32_t blocks, int32_t block_size, bool prefix_cache,
           PrefixTree::Hash hash = secret_hash)
      : KvBlocks(std::vector<GroupShape>(groups, {blocks}), block_size, prefix_cache, hash) {}
  // Sets the function that copies a block, before anything is computed later. Only forks need it, and not of
  // blocks that have no content.
  void on_copy(Copy copy) { copy_ = std::move(copy); }
  // Sets the function that copies the states from one slot to another. Only a model with states needs it.
  void on_copy_state(CopyState copy) { copy_state_ = std::move(copy); }
  // Sets the function that says which blocks of a sequence are forgotten, by the slot of its states. Only
  // groups whose sequences keep so many blocks need it (GroupShape::kept).
  void on_gone(Gone gone) { gone_ = std::move(gone); }

  // Tells `leaving` of each remembered block before it is forgotten (PrefixTree::archive). Only where
  // prefixes are remembered, and before any is.
  void archive(const ArchiveHash& hash, PrefixTree::Leaving leaving) {
    tree_->archive(hash, std::move(leaving));
  }
  // The same of PrefixTree::log_to and PrefixTree::visit_from.
  void log_to(CacheLog& log) { tree_->log_to(log); }
  void visit_from(uint64_t number, const std::function<bool(const PrefixTree::Node& node)>& visit) const {
    tree_->visit_from(number, visit);
  }
  // Calls `visit` with the idle blocks of a group, the one that is evicted last first, until it returns
  // false.
  void visit_idle(int32_t group, const std::function<bool(const PrefixTree::Node& node)>& visit) const {
    if (tree_) tree_->visit_idle(static_cast<size_t>(group), visit);
  }

  int32_t block_size() const { return block_size_; }
  int32_t blocks_for(int64_t positions) const {
    return static_cast<int32_t>((positions + block_size_ - 1) / block_size_);
  }
  // Returns how many blocks of a group can still be handed out, by eviction where necessary.
  int32_t available(int32_t group = 0) const { return groups_[group].free() + groups_[group].idle(); }
  const BlockAllocator& group(int32_t index) const { return groups_[index]; }
  const GroupShape& shape(int32_t group) const { return shapes_[group]; }
  int32_t groups() const { return static_cast<int32_t>(groups_.size()); }
  int64_t evictions() const { return tree_ ? tree_->evictions() : 0; }

  // The longest remembered prefix of full blocks, from a sequence of the same salt, that leaves at least one
  // token to compute. In a group with a window it needs only the blocks that a position behind the prefix
  // sees. If the model has states, the prefix ends at a snapshot.
  struct Match {
    std::vector<PrefixTree::Node*> path;
    // Blocks of the prefix that would be matched if all nodes had snapshots; at least path.size().
    int32_t remembered = 0;
    std::vector<int32_t> filled;  // [cache groups]: entries to which attach gives a block
    std::vector<int32_t> idle;    // [cache groups]: those whose blocks it would take out of available()
  };
  Match match(std::span<const int32_t> tokens, std::string_view salt = {}) const;
  // Gives an empty sequence the matched blocks, and a slot that holds the states behind them. Throws what the
  // copy of states throws. If it throws, nothing has changed.
  void attach(const Match& match, SequenceBlocks& held);
  // Returns references to the same blocks for another sequence, and a copy of the states in a slot of its
  // own. Throws what the copy of states throws.
  SequenceBlocks fork(const SequenceBlocks& held);
  // Returns how many blocks of a group it takes to write positions [from, to): the new blocks, and a copy if
  // the first block that is written is shared with a fork.
  int32_t missing(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const;
  // Returns the same as missing(), for positions that are written chunk by chunk: a group with a window gives
  // back as many blocks as it takes, so a sequence never holds more than its bound.
  int32_t outstanding(int32_t group, const SequenceBlocks& held, int32_t from, int32_t to) const;
  // Returns the end, up to `to`, of the positions from `from` on that could be made writable now; `from` if
  // there are none.
  int32_t reach(const SequenceBlocks& held, int32_t from, int32_t to) const;
  // Makes these positions writable. Returns false, and changes nothing, if the blocks are not available. If
  // it throws, the sequence has as many blocks as before.
  bool make_writable(SequenceBlocks& held, int32_t from, int32_t to);
  void shrink(SequenceBlocks& held, int32_t blocks);
  // Remembers the full blocks of `tokens`, all of them computed. If the tree already has a block with the
  // same tokens, the sequence takes that block instead of its own: the bits are the same, and so a sequence
  // always holds every ancestor of a node that it holds. If it throws bad_alloc, the next call publishes the
  // remaining blocks.
  // priority: that of the request, for those who keep forgotten blocks.
  void publish(SequenceBlocks& held, std::span<const int32_t> tokens, std::string_view salt = {},
               int32_t priority = 0);
  // The next five functions serve prefixes that come from another engine or go to one (prefix_import.h).
  // Whether the contents of blocks are remembered at all.
  bool remembers() const { return tree_.has_value(); }
  // Returns the nodes of the leading full blocks of `tokens`, the first block first. They may have holes.
  std::vector<PrefixTree::Node*> remembered_path(std::span<const int32_t> tokens,
                                                 std::string_view salt = {}) const;
  // Makes the idle blocks of such a path the last to be evicted, so that what is to follow them does not take
  // their place.
  void touch(const std::vector<PrefixTree::Node*>& path) {
    for (size_t group = 0; !path.empty() && group < groups_.size(); ++group) tree_->touch(path.back(), group);
  }
  // Returns whether a sequence behind a prefix of `blocks` blocks needs block `index` of a group, whose
  // sequences forget no blocks.
  bool is_needed_behind(int32_t group, int32_t blocks, int32_t index) const;
  // Returns how many leading blocks of each sequence in a group are never dropped.
  int32_t sink_blocks(int32_t group) const { return shapes_[group].sink_blocks(block_size_); }
  // Returns a block of the group that is free, or that was idle and is forgotten now; an empty ref if there
  // is none.
  BlockRef take_block(int32_t group);
  // Remembers a prefix all of whose wanted blocks have arrived, and gives back the references to them. Where
  // the tree has a block with the same tokens meanwhile, it keeps its own. With `write_state`, which fills a
  // slot, the last node gets a snapshot of the states, unless it has one. Throws Error{"TransferError"}, and
  // remembers nothing, if a block that was not wanted is gone, and what write_state throws.
  void adopt(PrefixImport& import, const std::function<void(int32_t slot)>& write_state);
  // Whether prefixes are reused by snapshots of states.
  bool keeps_snapshots() const { return max_snapshots_ > 0; }
  // Keeps the states of a sequence for later ones, if its `computed` tokens are exactly its published blocks;
  // else it does nothing. A sequence that decodes moves its last snapshot along instead of keeping another,
  // unless some sequence has started from it. A snapshot is a convenience: if there is no memory or the copy
  // fails, there is none.
  void take_snapshot(SequenceBlocks& held, int32_t computed, bool decodes);
  const SnapshotStats& snapshot_stats() const { return snapshot_stats_; }
  int32_t state_slots() const { return slots_ ? slots_->total() : 0; }
  int32_t used_state_slots() const { return slots_ ? slots_->used() : 0; }  // of sequences and snapshots
  int32_t snapshots() const { return tree_ ? tree_->snapshots() : 0; }
  // Gives back the blocks that no position from `next` on sees, except the last published block, which keeps
  // the sequence's place in the tree; and those that are forgotten where `next` is a multiple of the group's
  // interval. Neither drop_unseen() nor release() takes memory.
  void drop_unseen(SequenceBlocks& held, int32_t next);
  void release(SequenceBlocks& held);
  // Throws InvariantError unless every block of a group is free, idle or used, and these agree with the tree
  // and with `held`, the references that sequences have to blocks of the group.
  void check(int32_t group, int64_t held) const;
  // Throws InvariantError unless the slots in use are those of `sequences` running sequences and the
  // snapshots.
  void check_states(int64_t sequences) const;

 private:
  void drop_gone(size_t group, SequenceBlocks& held);
  void release_kept(size_t group, SequenceBlocks& gone);
  bool is_kept_behind(const PrefixTree::Node* node, size_t group, int32_t index) const;
  bool needs(const std::vector<PrefixTree::Node*>& path, size_t group, int32_t index) const;
  int32_t first_needed(size_t group, int32_t next, int32_t published) const;
  std::vector<BlockTable> empty_tables() const;
  bool copies(size_t group, const SequenceBlocks& held, int32_t from) const;
  bool ends_hit(const std::vector<PrefixTree::Node*>& path, size_t length) const;
  void check_whole(const PrefixImport& import) const;
  void hold_path(PrefixImport& import, PrefixTree::Node** tail, int32_t* depth);
  BlockRef take_slot();
  BlockRef slot_for_snapshot(SequenceBlocks& held, bool decodes);

  std::vector<GroupShape> shapes_;
  std::deque<BlockAllocator> groups_;  // a deque, because an allocator cannot move
  int32_t block_size_;
  std::optional<BlockAllocator> slots_;  // of states; absent if the model has none
  const int32_t max_snapshots_;          // 0 without states and without a tree
  std::optional<PrefixTree> tree_;       // absent if no prefix is reused
  Copy copy_;
  CopyState copy_state_;
  Gone gone_;
  SnapshotStats snapshot_stats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_KV_BLOCKS_H_
