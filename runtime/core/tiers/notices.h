// What the tiers have to tell people: a few texts, until somebody fetches them.
#ifndef TENSORWRIGHT_RUNTIME_CORE_NOTICES_H_
#define TENSORWRIGHT_RUNTIME_CORE_NOTICES_H_

#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tensorwright {

// Any thread may call its members.
class Notices {
 public:
  // A notice beyond this many that nobody has fetched is left out: the counts have what happened.
  static constexpr size_t kMax = 16;

  void add(std::string text) {
    std::lock_guard lock(mutex_);
    if (texts_.size() < kMax) texts_.push_back(std::move(text));
  }
  std::vector<std::string> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_NOTICES_H_
