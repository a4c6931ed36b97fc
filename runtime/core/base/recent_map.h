// A map of bounded size that gives up the entry that was asked for least recently.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BASE_RECENT_MAP_H_
#define TENSORWRIGHT_RUNTIME_CORE_BASE_RECENT_MAP_H_

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace tensorwright {

// A value's address stays while it is in the map. No two threads may use a map at once.
template <typename Key, typename Value>
class RecentMap {
 public:
  // max_entries: at least 1.
  explicit RecentMap(size_t max_entries) : max_entries_(max_entries) {}

  // Returns the value of a key, which is then the most recent one, or null.
  Value* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  // Adds a key that is not there. A full map drops its least recent entry first. If it throws, the key is not
  // there.
  Value& add(const Key& key, Value value) {
    if (entries_.size() >= max_entries_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    try {
      places_.emplace(key, entries_.begin());
    } catch (...) {
      entries_.pop_front();
      throw;
    }
    return entries_.front().second;
  }

  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;

  const size_t max_entries_;
  Entries entries_;  // the most recent one first
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BASE_RECENT_MAP_H_
