// A persistent team of threads that runs one parallel region at a time: N - 1 workers and the caller.
//
// Each thread owns a contiguous share of a region's tasks (so a thread streams the same weights every step)
// and steals from the others once its own share is done. Which thread ran a task must not matter to its
// result.
#ifndef TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_
#define TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tensorwright {

// Flushes denormals to zero, on input and output, while it lives, or (flush = false) computes with them; then
// restores the thread's setting.
class DenormalGuard {
 public:
  explicit DenormalGuard(bool flush = true);
  ~DenormalGuard();
  DenormalGuard(const DenormalGuard&) = delete;
  DenormalGuard& operator=(const DenormalGuard&) = delete;

 private:
  uint32_t saved_;
};

// Processors this process may run on.
int usable_processors();

class ThreadTeam {
 public:
  // threads: 1 to kMaxThreads, the caller included; 0 takes usable_processors(). Throws
  // Error{"InvalidOptionError"}.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  static constexpr int kMaxThreads = 1024;

  int threads() const { return threads_; }

  // Calls fn(task, thread) once for every task in [0, tasks), on some thread in [0, threads()), with
  // denormals flushed; returns when all are done. The first exception of a task is thrown again here, after
  // the others ran. Not to be called from two threads at once, nor from inside a task.
  template <typename Fn>
  void run(int tasks, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run_region(
        tasks, [](void* f, int task, int thread) { (*static_cast<Plain*>(f))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void* fn, int task, int thread);

  // Tasks of one thread's share that were taken: epoch in the high half, how many in the low half. An older
  // epoch means none yet.
  struct alignas(64) Share {
    std::atomic<uint64_t> taken{0};
  };

  void run_region(int tasks, Call call, void* fn);
  void publish(int tasks, Call call, void* fn);
  void renew_shares();
  void stop();
  void work(int thread);
  uint32_t await_region(uint32_t seen);
  int take_tasks(int thread);
  int claim(int owner, uint32_t epoch, int tasks);
  void finish(int done);
  void await_finish(int expected);

  const int threads_;
  const int spin_us_;
  std::unique_ptr<Share[]> shares_;
  uint64_t regions_ = 0;

  // What the caller publishes, on one cache line. call_ and fn_ may be read by whoever has claimed a task.
  alignas(64) std::atomic<uint64_t> region_{0};  // epoch << 32 | tasks
  std::atomic<uint32_t> epoch_{0};               // what idle workers watch
  Call call_ = nullptr;
  void* fn_ = nullptr;

  alignas(64) std::atomic<uint32_t> finished_{0};  // tasks of this region that workers have run
  std::atomic<uint32_t> caller_waits_{0};
  alignas(64) std::atomic<int> parked_{0};  // workers asleep, or about to be
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;

  std::vector<std::thread> workers_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_
