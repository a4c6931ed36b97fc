#include "runtime/core/cache/cache_log.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/cache/prefix_salt.h"

namespace tensorwright {

namespace {

// The most seconds of one wait, far from overflowing a clock.
constexpr double kLongestWait = 3600;

uint64_t draw_epoch() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

// No request has an adapter with an empty key, so no first block is under this name.
ArchiveKey salt_name(const ArchiveHash& hash, std::string_view salt) {
  return hash.root(join_salt({{}, salt}));
}

ArchiveKey adapter_name(const ArchiveHash& hash, std::string_view key) {
  return hash.root(join_salt({key, {}}));
}

CacheOrigin origin_of(const ArchiveHash& hash, std::string_view salt) {
  const SaltParts parts = split_salt(salt);
  CacheOrigin origin;
  if (!parts.salt.empty()) origin.salt = salt_name(hash, parts.salt);
  if (!parts.adapter.empty()) origin.adapter = adapter_name(hash, parts.adapter);
  return origin;
}

CacheLog::CacheLog(size_t capacity, int32_t block_size)
    : capacity_(std::max<size_t>(capacity, 1)),
      block_size_(static_cast<size_t>(block_size)),
      epoch_(draw_epoch()) {}

// Takes all memory of a recording at the first read, so that add() takes none, and before the lock, for the
// engine's loop waits for that.
void CacheLog::make_ring() {
  if (has_ring_.load(std::memory_order_acquire)) return;
  std::vector<CacheEvent> ring(capacity_);
  for (CacheEvent& event : ring) event.tokens.reserve(block_size_);
  std::lock_guard lock(mutex_);
  if (ring_.empty()) ring_ = std::move(ring);
  has_ring_.store(true, std::memory_order_release);
}

// Begins a recording, if there is none. The caller must hold mutex_, and have called make_ring().
void CacheLog::record() {
  if (!recording_) first_ = last_ + 1;
  recording_ = true;
  read_at_ = last_;
}

// Counts an event, and returns its place; null if nobody reads. The caller must hold mutex_.
CacheEvent* CacheLog::next_place() noexcept {
  ++last_;
  if (recording_ && last_ - read_at_ > static_cast<int64_t>(capacity_)) recording_ = false;
  if (!recording_) return nullptr;
  CacheEvent& event = ring_[static_cast<size_t>(last_) % capacity_];
  event.number = last_;
  if (waiting_ > 0) news_.notify_all();
  return &event;
}

void CacheLog::add(bool stored, CacheTier tier, int32_t group, const ArchiveKey& block) noexcept {
  std::lock_guard lock(mutex_);
  CacheEvent* event = next_place();
  if (!event) return;
  event->stored = stored, event->tier = tier, event->group = group, event->block = block;
  event->parent = std::nullopt, event->origin = {};
  event->tokens.clear();
}

void CacheLog::add_stored(int32_t group, const ArchiveKey& block, const std::optional<ArchiveKey>& parent,
                          const CacheOrigin& origin, std::span<const int32_t> tokens) noexcept {
  std::lock_guard lock(mutex_);
  CacheEvent* event = next_place();
  if (!event) return;
  event->stored = true, event->tier = CacheTier::kCache, event->group = group, event->block = block;
  event->parent = parent, event->origin = origin;
  event->tokens.assign(tokens.begin(), tokens.end());
}

int64_t CacheLog::begin() {
  make_ring();
  std::lock_guard lock(mutex_);
  record();
  return last_;
}

CacheLog::News CacheLog::read(int64_t after, size_t limit, double timeout_s) {
  make_ring();
  std::unique_lock lock(mutex_);
  if (after < 0 || after > last_)
    throw Error("InvalidRequestError", concat("[cache_log] events are asked for behind one of the ", last_,
                                              " so far, got number ", after, "; begin again without one"));
  const int64_t oldest = std::max(first_, last_ - static_cast<int64_t>(capacity_) + 1);
  const int64_t lost = recording_ && after + 1 >= oldest ? 0 : last_ - after;
  record();
  if (lost > 0) return {{}, last_, lost};
  if (after == last_ && timeout_s > 0) {
    const std::chrono::duration<double> wait(std::min(timeout_s, kLongestWait));
    ++waiting_;
    news_.wait_for(lock, wait, [&] { return last_ > after; });
    --waiting_;
    if (last_ - after > static_cast<int64_t>(capacity_)) {  // more came at once than are kept
      record();
      return {{}, last_, last_ - after};
    }
  }
  News news{{}, after, 0};
  news.events.reserve(std::min(limit, static_cast<size_t>(last_ - after)));
  const int64_t end = std::min(last_, after + static_cast<int64_t>(limit));
  for (int64_t number = after + 1; number <= end; ++number)
    news.events.push_back(ring_[static_cast<size_t>(number) % capacity_]);
  news.next = end;
  read_at_ = last_;
  return news;
}

}  // namespace tensorwright
