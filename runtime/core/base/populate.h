// Takes the page faults of memory that the first requests will write to before they come: a first touch costs
// as much as the step itself.
//
// The rule: of the pieces, in the order in which steps come to need them, the first kAtOnce bytes when the
// engine opens, on all its threads; then, on a thread of its own that works a quarter of the time, the rest
// up to the limit that the caller gives. What lies beyond faults when it is first used. Nothing that is in
// memory is changed.
#ifndef TENSORWRIGHT_RUNTIME_CORE_POPULATE_H_
#define TENSORWRIGHT_RUNTIME_CORE_POPULATE_H_

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "runtime/core/base/thread_team.h"

namespace tensorwright {

struct MemoryPiece {
  char* data;
  size_t bytes;
};

class Populator {
 public:
  static constexpr size_t kAtOnce = size_t{64} << 20;

  Populator() = default;
  ~Populator();
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;

  // Called once. The memory must live as long as this. limit: bytes, 0: nothing is done.
  void start(const std::vector<MemoryPiece>& pieces, size_t limit, ThreadTeam& team);
  // Until the limit is reached.
  void wait();

 private:
  std::atomic<bool> stop_{false};
  std::thread rest_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_POPULATE_H_
