#include "runtime/core/scheduler/token_masks.h"

#include <bit>
#include <string>
#include <utility>

#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Returns the only token that the mask allows, or -1.
int32_t only_token(const MaskWords& words) {
  int32_t token = -1;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == 0) continue;
    if (token >= 0 || !std::has_single_bit(words[i])) return -1;
    token = static_cast<int32_t>(i * 32) + std::countr_zero(words[i]);
  }
  return token;
}

}  // namespace

void TokenMasks::open(int64_t id, int32_t n, MaskWords first) {
  const int32_t forced = only_token(first);
  auto shared = std::make_shared<const MaskWords>(std::move(first));
  std::lock_guard lock(mutex_);
  for (int32_t completion = 0; completion < n; ++completion) {
    Entry& entry = entries_[{id, completion}] = Entry();
    entry.ahead.emplace(0, Mask{shared, forced});
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
  const int32_t forced = only_token(words);
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
  entry->second.ahead[generated] = {std::move(shared), forced};
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
  SharedMask taken = std::move(mask->second.words);
  entry.ahead.erase(mask);
  entry.next = generated + 1;
  return taken;
}

bool TokenMasks::forced(int64_t id, int32_t completion, int32_t generated, int32_t most,
                        std::vector<int32_t>* tokens) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find({id, completion});
  if (found == entries_.end()) return false;
  const auto& ahead = found->second.ahead;
  auto mask = ahead.find(generated);
  const bool has = mask != ahead.end();
  for (; most > 0 && mask != ahead.end() && mask->first == generated; ++mask, ++generated, --most) {
    if (mask->second.forced < 0) break;
    tokens->push_back(mask->second.forced);
  }
  return has;
}

bool TokenMasks::wait(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  news_.wait_until(lock, deadline, [&] { return told_; });
  return std::exchange(told_, false);
}

void TokenMasks::wake() {
  std::lock_guard lock(mutex_);
  told_ = true;
  news_.notify_one();
}

}  // namespace tensorwright
