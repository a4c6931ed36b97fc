// Takes the page faults of the memory that the first requests write to before these requests arrive, because
// a first touch costs as much as the step itself.
//
// The pieces are in the order in which steps need them. All threads of the engine populate the first kAtOnce
// bytes when the engine opens. Then a thread of its own, which works a quarter of the time, populates the
// rest up to the caller's limit. Pages beyond the limit fault when they are first used. The contents of the
// memory do not change. Where the team is placed on several NUMA nodes, they take turns, part by part.
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

  // May be called once. The memory must live as long as the Populator. limit: bytes; 0 populates nothing.
  void start(const std::vector<MemoryPiece>& pieces, size_t limit, ThreadTeam& team);
  // Waits until the limit is reached.
  void wait();

 private:
  std::atomic<bool> stop_{false};
  std::thread rest_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_POPULATE_H_
