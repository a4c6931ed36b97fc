#include "runtime/core/scheduler/token_masks.h"

#include <string>

#include "runtime/core/base/error.h"

namespace tensorwright {

void TokenMasks::open(int64_t id, int32_t n, MaskWords first) {
  auto shared = std::make_shared<const MaskWords>(std::move(first));
  std::lock_guard lock(mutex_);
  for (int32_t completion = 0; completion < n; ++completion) {
    Entry& entry = entries_[{id, completion}] = Entry();
    entry.ahead.emplace(0, shared);
  }
}

void TokenMasks::close(int64_t id, int32_t completion) {
  std::lock_guard lock(mutex_);
  entries_.erase({id, completion});
}

void TokenMasks::close_all() {
  std::lock_guard lock(mutex_);
  entries_.clear();
}

bool TokenMasks::put(int64_t id, int32_t completion, int32_t generated, MaskWords words) {
  auto shared = std::make_shared<const MaskWords>(std::move(words));
  std::lock_guard lock(mutex_);
  auto entry = entries_.find({id, completion});
  if (entry == entries_.end()) return false;
  if (generated < entry->second.next) {
    throw Error("InvalidRequestError", "[request] a mask must be of a token to come, from number " +
                                           std::to_string(entry->second.next) + " on for completion " +
                                           std::to_string(completion) + " of request " + std::to_string(id) +
                                           ", got one of token number " + std::to_string(generated) +
                                           "; set each token's mask before it is sampled");
  }
  entry->second.ahead[generated] = std::move(shared);
  told_ = true;
  news_.notify_one();
  return true;
}

SharedMask TokenMasks::take(int64_t id, int32_t completion, int32_t generated) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find({id, completion});
  if (found == entries_.end()) return nullptr;
  Entry& entry = found->second;
  entry.ahead.erase(entry.ahead.begin(), entry.ahead.lower_bound(generated));
  auto mask = entry.ahead.find(generated);
  if (mask == entry.ahead.end()) return nullptr;
  SharedMask taken = std::move(mask->second);
  entry.ahead.erase(mask);
  entry.next = generated + 1;
  return taken;
}

void TokenMasks::wait(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  news_.wait_until(lock, deadline, [&] { return told_; });
  told_ = false;
}

void TokenMasks::wake() {
  std::lock_guard lock(mutex_);
  told_ = true;
  news_.notify_one();
}

}  // namespace tensorwright
