#include "runtime/core/tiers/block_tiers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/start_thread.h"

namespace tensorwright {

namespace {

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

// How often old blocks are looked for.
constexpr double kSweepSeconds = 10;

}  // namespace

BlockTiers::BlockTiers(const TierOptions& options, const std::vector<int64_t>& block_bytes, CacheLog* log)
    : options_(options), hash_(options.secret), log_(log) {
  if (!options.disk.empty()) {
    disk_ = std::make_unique<DiskTier>(options.disk, options.disk_bytes, options.ttl_s,
                                       hash_.root("engine " + options.identity), block_bytes, notices_, log);
  }
  if (disk_ || options.ttl_s > 0)
    writer_ = start_thread("the tiers of the prefix cache", [this] { write_out(); });
}

void BlockTiers::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
  if (disk_) disk_->unlock();
}

StoredBlock BlockTiers::copy(const BlockId& id, int32_t priority, int64_t bytes,
                             const std::function<void(char*)>& fill) const {
  std::shared_ptr<char[]> content(new char[static_cast<size_t>(bytes)]);
  if (bytes > 0) fill(content.get());
  return {id, priority, bytes, std::move(content)};
}

void BlockTiers::put(const BlockId& id, int32_t priority, int64_t bytes,
                     const std::function<void(char*)>& fill) noexcept {
  try {
    {
      std::lock_guard lock(mutex_);
      if (const auto held = held_.find(id); held != held_.end()) return touch(held->second);
      if (leaving_.contains(id)) return;
      if (options_.memory_bytes == 0 && leaving_bytes_ + bytes > kMaxLeaving) {
        ++stats_.lost;
        return;
      }
    }
    if (options_.memory_bytes == 0 && disk_->has(id)) return;
    StoredBlock block = copy(id, priority, bytes, fill);
    std::lock_guard lock(mutex_);
    if (options_.memory_bytes > 0) return keep(std::move(block));
    if (leave(std::move(block))) tell(true, id);
  } catch (const std::exception&) {  // no memory, or the executor could not copy the block
    std::lock_guard lock(mutex_);
    ++stats_.lost;
  }
}

// Tells of a block that memory stores or removes, also on its way to the disk. The caller of this and of the
// next functions must hold mutex_.
void BlockTiers::tell(bool stored, const BlockId& id) const noexcept {
  if (log_) log_->add(stored, CacheTier::kMemory, id.group, id.key);
}

void BlockTiers::keep(StoredBlock block) {
  const BlockId id = block.id;
  if (block.bytes > options_.memory_bytes) {
    if (leave(std::move(block))) tell(true, id);
    return;
  }
  std::list<BlockId>& list = lists_[block.priority];
  list.push_back(block.id);
  try {
    held_bytes_ += block.bytes;
    held_.emplace(id, Held{std::move(block), std::prev(list.end()), Clock::now()});
  } catch (...) {
    held_bytes_ -= block.bytes;
    list.pop_back();
    throw;
  }
  tell(true, id);
  while (held_bytes_ > options_.memory_bytes) {
    StoredBlock least = take_least();
    const BlockId gone = least.id;
    ++stats_.memory_evicted;
    if (!disk_ || !leave(std::move(least))) tell(false, gone);
  }
}

// Takes the block that is worth least out of the memory.
StoredBlock BlockTiers::take_least() {
  const auto lowest = lists_.begin();
  const auto found = held_.find(lowest->second.front());
  StoredBlock block = std::move(found->second.block);
  held_bytes_ -= block.bytes;
  lowest->second.pop_front();
  if (lowest->second.empty()) lists_.erase(lowest);
  held_.erase(found);
  return block;
}

// Sends a block to the disk. Returns false if it is lost: too many are on their way, or there is no memory.
bool BlockTiers::leave(StoredBlock block) noexcept {
  const BlockId id = block.id;
  const int64_t bytes = block.bytes;
  if (!disk_ || leaving_bytes_ + bytes > kMaxLeaving) {
    ++stats_.lost;
    return false;
  }
  bool is_new = false;
  try {
    is_new = leaving_.emplace(id, std::move(block)).second;
    if (!is_new) return true;
    if (order_.empty()) first_left_ = Clock::now();
    order_.push_back(id);
  } catch (const std::bad_alloc&) {
    if (is_new) leaving_.erase(id);
    ++stats_.lost;
    return false;
  }
  leaving_bytes_ += bytes;
  wake_.notify_all();
  return true;
}

void BlockTiers::touch(Held& held) {
  std::list<BlockId>& list = lists_[held.block.priority];
  list.splice(list.end(), list, held.place);
  held.last_use = Clock::now();
}

bool BlockTiers::is_old(const Held& held) const {
  return options_.ttl_s > 0 && seconds_since(held.last_use) > options_.ttl_s;
}

bool BlockTiers::has(const BlockId& id) const {
  {
    std::lock_guard lock(mutex_);
    const auto held = held_.find(id);
    if (held != held_.end() && !is_old(held->second)) return true;
    if (leaving_.contains(id)) return true;
  }
  return disk_ && disk_->has(id);
}

// Returns the block's bytes if they are in memory.
std::shared_ptr<const char[]> BlockTiers::find(const BlockId& id) {
  std::lock_guard lock(mutex_);
  const auto held = held_.find(id);
  if (held != held_.end() && !is_old(held->second)) {
    touch(held->second);
    return held->second.block.content;
  }
  const auto leaving = leaving_.find(id);
  return leaving == leaving_.end() ? nullptr : leaving->second.content;
}

bool BlockTiers::read(const BlockId& id, std::span<char> out) {
  if (const std::shared_ptr<const char[]> content = find(id)) {
    std::memcpy(out.data(), content.get(), out.size());
    std::lock_guard lock(mutex_);
    ++stats_.memory_hits;
    return true;
  }
  if (!disk_ || !disk_->read(id, out)) return false;
  std::lock_guard lock(mutex_);
  ++stats_.disk_hits;
  return true;
}

// Forgets the blocks in memory that were not used for the time to live.
void BlockTiers::sweep() {
  std::lock_guard lock(mutex_);
  for (auto list = lists_.begin(); list != lists_.end();) {
    while (!list->second.empty()) {
      const auto held = held_.find(list->second.front());
      if (!is_old(held->second)) break;
      held_bytes_ -= held->second.block.bytes;
      ++stats_.memory_evicted;
      tell(false, held->first);
      held_.erase(held);
      list->second.pop_front();
    }
    list = list->second.empty() ? lists_.erase(list) : std::next(list);
  }
}

// What the writer's thread does.
void BlockTiers::write_out() {
  Clock::time_point swept = Clock::now();
  while (true) {
    std::vector<StoredBlock> batch;
    {
      std::unique_lock lock(mutex_);
      const auto full = [&] { return ended_ || closing_ || leaving_bytes_ >= kBatchBytes; };
      if (order_.empty()) {
        wake_.wait_for(lock, seconds(kSweepSeconds), [&] { return ended_ || !order_.empty(); });
      } else {
        wake_.wait_until(lock, first_left_ + seconds(kBatchSeconds), full);
      }
      if (ended_) return;
      try {
        batch = next_batch();
      } catch (const std::bad_alloc&) {  // they are written when there is memory again
        first_left_ = Clock::now();
      }
    }
    if (options_.ttl_s > 0 && seconds_since(swept) > kSweepSeconds) {
      sweep();
      if (disk_) disk_->sweep();
      swept = Clock::now();
    }
    if (batch.empty()) continue;
    bool written = false;
    try {
      written = disk_->write(batch);
    } catch (const std::bad_alloc&) {
    }
    std::lock_guard lock(mutex_);
    if (!written) stats_.lost += static_cast<int64_t>(batch.size());
    for (const StoredBlock& block : batch) {
      leaving_.erase(block.id);
      leaving_bytes_ -= block.bytes;
      tell(false, block.id);
    }
    drained_.notify_all();
  }
}

// Returns the blocks of the next file, if they have waited long enough or are many.
std::vector<StoredBlock> BlockTiers::next_batch() {
  std::vector<StoredBlock> batch;
  const bool due = closing_ || leaving_bytes_ >= kBatchBytes || seconds_since(first_left_) >= kBatchSeconds;
  int64_t bytes = 0;
  for (size_t i = 0; due && i < order_.size() && i < kMaxSegmentBlocks; ++i) {
    const StoredBlock& block = leaving_.at(order_[i]);
    if (!batch.empty() && bytes + block.bytes > kFileBytes) break;
    bytes += block.bytes;
    batch.push_back(block);
  }
  order_.erase(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
  first_left_ = Clock::now();
  return batch;
}

bool BlockTiers::save(const BlockId& id, int32_t priority, int64_t bytes,
                      const std::function<void(char*)>& fill, Clock::time_point until) {
  if (!disk_) return false;
  if (has(id)) return true;  // close() sees to it
  StoredBlock block = copy(id, priority, bytes, fill);
  std::unique_lock lock(mutex_);
  const auto fits = [&] { return leaving_bytes_ + bytes <= kMaxLeaving; };
  if (!drained_.wait_until(lock, until, fits) || !leave(std::move(block))) return false;
  tell(true, id);
  return true;
}

bool BlockTiers::visit_page(Part part, BucketPlace* place, size_t limit,
                            const std::function<void(const BlockId&)>& visit) const {
  if (part == Part::kDisk) return !disk_ || disk_->visit_page(place, limit, visit);
  std::lock_guard lock(mutex_);
  return part == Part::kHeld ? tensorwright::visit_page(held_, place, limit, visit)
                             : tensorwright::visit_page(leaving_, place, limit, visit);
}

void BlockTiers::close(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  wake_.notify_all();
  if (!disk_) return;
  // From here on the memory is emptied from the end: what is worth most goes first.
  while (!held_.empty()) {
    const auto highest = std::prev(lists_.end());
    const auto found = held_.find(highest->second.back());
    const int64_t bytes = found->second.block.bytes;
    const BlockId id = found->first;
    if (!drained_.wait_until(lock, until, [&] { return leaving_bytes_ + bytes <= kMaxLeaving; })) break;
    if (!leave(std::move(found->second.block))) tell(false, id);
    held_bytes_ -= bytes;
    held_.erase(found);
    highest->second.pop_back();
    if (highest->second.empty()) lists_.erase(highest);
  }
  drained_.wait_until(lock, until, [&] { return leaving_.empty(); });
  if (const size_t left = held_.size() + leaving_.size(); left > 0)
    notices_.add(concat("the prefix cache had no time to write ", left, " blocks before the engine ended"));
}

TierStats BlockTiers::stats() const {
  TierStats stats;
  {
    std::lock_guard lock(mutex_);
    stats = stats_;
    stats.memory_bytes = held_bytes_ + leaving_bytes_;
    stats.memory_blocks = static_cast<int64_t>(held_.size() + leaving_.size());
  }
  if (disk_) stats.disk = disk_->stats();
  return stats;
}

}  // namespace tensorwright
