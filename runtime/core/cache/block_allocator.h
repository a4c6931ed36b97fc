// Counts the blocks of one cache group. A block is a number here; the executor owns its memory.
//
// A block is free, used (a sequence refers to it) or idle (only the prefix tree keeps it). That the tree
// keeps a block is a flag and not a reference, so that shared blocks and remembered blocks are counted apart.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BLOCK_ALLOCATOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_BLOCK_ALLOCATOR_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/core/base/make_room.h"

namespace tensorwright {

class BlockAllocator;

// One reference to one block, which the destructor gives back. A BlockRef can be moved; share() makes another
// reference.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept : pool_(other.pool_), id_(other.id_) { other.pool_ = nullptr; }
  BlockRef& operator=(BlockRef&& other) noexcept;
  BlockRef(const BlockRef&) = delete;
  BlockRef& operator=(const BlockRef&) = delete;
  ~BlockRef() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  int32_t id() const { return id_; }
  BlockRef share() const;
  void reset() noexcept;

 private:
  friend class BlockAllocator;
  BlockRef(BlockAllocator* pool, int32_t id) : pool_(pool), id_(id) {}
  BlockAllocator* pool_ = nullptr;
  int32_t id_ = -1;
};

// Every member throws std::logic_error on misuse (double free, a block out of range): a bug of the engine,
// never a user's.
class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t blocks);
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  BlockRef allocate();            // an empty ref if no block is free
  BlockRef share(int32_t block);  // one more reference, also to an idle block
  void release(int32_t block);    // for BlockRef; the last release frees the block or leaves it idle

  void keep(int32_t block);    // the prefix tree remembers the block
  void forget(int32_t block);  // the tree no longer remembers the block: an idle block becomes free

  int32_t references(int32_t block) const { return at(block).references; }
  bool kept(int32_t block) const { return at(block).kept; }
  int32_t total() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t idle() const { return idle_; }
  int32_t used() const { return used_; }
  int64_t all_references() const { return all_references_; }
  int32_t all_kept() const { return all_kept_; }

 private:
  struct Block {
    int32_t references = 0;
    bool kept = false;
  };
  const Block& at(int32_t block) const;
  Block& at(int32_t block) { return const_cast<Block&>(std::as_const(*this).at(block)); }

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack: the block freed last is likely in the processor's cache
  // Each is counted on its own, so that KvBlocks::check can compare them.
  int32_t idle_ = 0, used_ = 0, all_kept_ = 0;
  int64_t all_references_ = 0;
};

// The blocks of one sequence in one group, in the order of positions. The destructor gives them back. Blocks
// that fell out of the group's window are dropped, the first block first; their entries stay, and are empty.
// The first `sinks` entries hold sink tokens (group_shape.h) and are never dropped so. Any entry may be
// dropped by its index.
class BlockTable {
 public:
  explicit BlockTable(int32_t sinks = 0) : sinks_(sinks), first_(sinks) {}
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t sinks() const { return sinks_; }
  // All entries from sinks() up to this one are dropped. It may lie behind the end of a short table.
  int32_t first() const { return first_; }
  int32_t held() const { return size() - (first_ - sinks_) - holes_; }
  int32_t operator[](int32_t index) const {
    return index < first_ && index >= sinks_ ? -1 : blocks_[index] ? blocks_[index].id() : -1;
  }
  void append(BlockRef block) { blocks_.push_back(std::move(block)); }
  // Appends an entry that is dropped already.
  void append_hole() {
    blocks_.emplace_back();
    ++holes_;
  }
  // Takes the memory for `size` entries: up to this size, append() and drop() throw nothing.
  void reserve(int32_t size) {
    if (size > this->size()) make_room(blocks_, static_cast<size_t>(size - this->size()));
  }
  // Drops the block of entry first(). At the end of the table it appends an empty entry instead, for a block
  // that the sequence never held. The table must have the entries of the sinks.
  void drop();
  // Drops the block of an entry behind first(), if it is not dropped yet.
  void drop(int32_t index) {
    if (!blocks_[index]) return;
    blocks_[index].reset();
    ++holes_;
  }
  void replace(int32_t index, BlockRef block) { blocks_[index] = std::move(block); }
  void truncate(int32_t size) {
    for (int32_t i = std::max(size, first_); i < this->size(); ++i) holes_ -= !blocks_[i];
    blocks_.resize(size);
  }
  // Returns a table with more references to the same blocks, for a fork.
  BlockTable share() const;
  // Copies on write: if another sequence or the tree has the block too, `copy(from, to)` fills a new block,
  // which takes the entry. Returns false, and changes nothing, if no block is free. If `copy` throws, nothing
  // has changed either.
  bool make_writable(int32_t index, BlockAllocator& pool, const std::function<void(int32_t, int32_t)>& copy);

 private:
  std::vector<BlockRef> blocks_;
  int32_t sinks_, first_;
  int32_t holes_ = 0;  // entries behind first() that were dropped
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BLOCK_ALLOCATOR_H_
