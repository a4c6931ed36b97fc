#include "runtime/bindings/timed.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "runtime/core/base/error.h"

namespace tensorwright {

using SteadyClock = std::chrono::steady_clock;

std::vector<double> timed(int threads, int repeats, const std::function<void(int, int)>& body) {
  std::vector<std::vector<SteadyClock::time_point>> marks(static_cast<size_t>(threads));
  std::barrier gate(threads);
  auto run = [&](int thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(thread), &set);
    pthread_setaffinity_np(pthread_self(), sizeof set,
                           &set);  // may fail: an unpinned thread measures too
    auto& mine = marks[static_cast<size_t>(thread)];
    for (int i = 0; i < repeats; ++i) {
      gate.arrive_and_wait();
      mine.push_back(SteadyClock::now());
      body(thread, i);
      mine.push_back(SteadyClock::now());
    }
  };
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) team.emplace_back(run, t);
  for (auto& t : team) t.join();
  std::vector<double> seconds;
  for (size_t i = 0; i < static_cast<size_t>(repeats); ++i) {
    auto begin = marks[0][2 * i], end = marks[0][2 * i + 1];
    for (const auto& mine : marks) {
      begin = std::min(begin, mine[2 * i]);
      end = std::max(end, mine[2 * i + 1]);
    }
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
  }
  return seconds;
}

Buffer benchmark_buffer(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t rounded = std::max((bytes + kHugePage - 1) / kHugePage * kHugePage, kHugePage);
  Buffer out(static_cast<char*>(std::aligned_alloc(kHugePage, rounded)));
  if (!out) throw Error("OutOfMemoryError", "benchmark: no memory for " + std::to_string(bytes) + " bytes");
  std::memset(out.get(), 0x3c, rounded);
  return out;
}

}  // namespace tensorwright
