#include "runtime/core/speculation/output_store.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace tensorwright {

void OutputStore::remember(const Sequence& sequence) noexcept {
  const int32_t from = std::max(0, sequence.prompt_tokens - MatchIndex::kLongest);
  const int64_t count = sequence.size() - from;
  if (sequence.generated() == 0 || sequence.sampling->beams() || count > most_ / 2 ||
      waiting_tokens_ + count > most_)
    return;
  try {
    Output output{sequence.sampling->cache_salt, {sequence.tokens.begin() + from, sequence.tokens.end()}};
    waiting_.push_back(std::move(output));
    waiting_tokens_ += count;
  } catch (const std::exception&) {
    // Nothing depends on it.
  }
}

int32_t OutputStore::digest(int32_t tokens) {
  int32_t added = 0;
  while (added < tokens && !waiting_.empty()) {
    const Output& output = waiting_.front();
    make_room_for_one(output.salt);
    Store& store = stores_[output.salt];
    if (added_ == 0) {
      store.used = ++uses_;
      store.young.cut();
    }
    add(store, output.tokens[added_]);
    ++added;
    --waiting_tokens_;
    if (++added_ < output.tokens.size()) continue;
    waiting_.pop_front();
    added_ = 0;
  }
  return added;
}

void OutputStore::add(Store& store, int32_t token) {
  if (store.young.size() >= most_ / 2 && added_ == 0) {
    drop(store.old);
    std::swap(store.old, store.young);
  }
  store.young.add(token);
  ++tokens_;
}

void OutputStore::drop(MatchIndex& index) {
  tokens_ -= index.size();
  index = MatchIndex();
}

// Where all stores hold as much as they may, the one that was used longest ago is dropped; the salt's own
// loses its old half first.
void OutputStore::make_room_for_one(const std::string& salt) {
  while (tokens_ >= most_) {
    auto oldest = stores_.end();
    for (auto at = stores_.begin(); at != stores_.end(); ++at)
      if (at->first != salt && (oldest == stores_.end() || at->second.used < oldest->second.used))
        oldest = at;
    if (oldest != stores_.end()) {
      drop(oldest->second.young);
      drop(oldest->second.old);
      stores_.erase(oldest);
      continue;
    }
    Store& own = stores_.at(salt);
    if (own.old.size() == 0) std::swap(own.old, own.young);
    drop(own.old);
  }
}

OutputStore::Found OutputStore::find(const std::string& salt, std::span<const int32_t> text, int32_t least) {
  const auto store = stores_.find(salt);
  if (store == stores_.end()) return {};
  store->second.used = ++uses_;
  Found found;
  for (const MatchIndex* index : {&store->second.young, &store->second.old}) {
    const Match match = index->find(text, least);
    if (match.length > found.length) found = {match.length, index->behind(match)};
  }
  return found;
}

}  // namespace tensorwright
