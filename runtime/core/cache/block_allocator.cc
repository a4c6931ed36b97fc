#include "runtime/core/cache/block_allocator.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace tensorwright {

namespace {

void require(bool holds, const char* what, int32_t block) {
  if (!holds)
    throw std::logic_error("[block_allocator] " + std::string(what) + ", block " + std::to_string(block));
}

}  // namespace

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = other.id_;
  }
  return *this;
}

BlockRef BlockRef::share() const { return pool_ ? pool_->share(id_) : BlockRef(); }

void BlockRef::reset() noexcept {
  if (BlockAllocator* pool = std::exchange(pool_, nullptr)) pool->release(id_);
}

BlockAllocator::BlockAllocator(int32_t blocks) : blocks_(blocks) {
  free_.reserve(blocks);  // so that release() never takes memory
  for (int32_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

const BlockAllocator::Block& BlockAllocator::at(int32_t block) const {
  require(block >= 0 && block < total(), "a block must exist", block);
  return blocks_[block];
}

BlockRef BlockAllocator::allocate() {
  if (free_.empty()) return BlockRef();
  int32_t block = free_.back();
  free_.pop_back();
  at(block).references = 1;
  ++used_, ++all_references_;
  return BlockRef(this, block);
}

BlockRef BlockAllocator::share(int32_t block) {
  Block& b = at(block);
  require(b.references > 0 || b.kept, "only a used or idle block can be shared", block);
  if (b.references++ == 0) --idle_, ++used_;
  ++all_references_;
  return BlockRef(this, block);
}

void BlockAllocator::release(int32_t block) {
  Block& b = at(block);
  require(b.references > 0, "a block must be released once per reference", block);
  --all_references_;
  if (--b.references > 0) return;
  --used_;
  if (b.kept) {
    ++idle_;
  } else {
    free_.push_back(block);
  }
}

void BlockAllocator::keep(int32_t block) {
  Block& b = at(block);
  require(b.references > 0 && !b.kept, "only a used block can be kept, once", block);
  b.kept = true;
  ++all_kept_;
}

void BlockAllocator::forget(int32_t block) {
  Block& b = at(block);
  require(b.kept, "only a kept block can be forgotten", block);
  b.kept = false;
  --all_kept_;
  if (b.references > 0) return;
  --idle_;
  free_.push_back(block);
}

void BlockTable::drop() {
  if (first_ == size()) blocks_.emplace_back();
  blocks_[first_++].reset();
}

BlockTable BlockTable::share() const {
  BlockTable other(sinks_);
  other.first_ = first_;
  other.holes_ = holes_;
  other.blocks_.reserve(blocks_.size());
  for (const BlockRef& block : blocks_) other.blocks_.push_back(block.share());
  return other;
}

bool BlockTable::make_writable(int32_t index, BlockAllocator& pool,
                               const std::function<void(int32_t, int32_t)>& copy) {
  int32_t from = blocks_[index].id();
  if (pool.references(from) == 1 && !pool.kept(from)) return true;
  BlockRef to = pool.allocate();
  if (!to) return false;
  copy(from, to.id());
  blocks_[index] = std::move(to);
  return true;
}

}  // namespace tensorwright
