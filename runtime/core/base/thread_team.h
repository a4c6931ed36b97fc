// A persistent team of threads, N - 1 workers and the caller, runs one parallel region at a time.
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

// While a guard lives, its thread flushes denormals to zero on input and output, or with flush = false
// computes with them. The destructor restores the thread's setting.
class DenormalGuard {
 public:
  explicit DenormalGuard(bool flush = true);
  ~DenormalGuard();
  DenormalGuard(const DenormalGuard&) = delete;
  DenormalGuard& operator=(const DenormalGuard&) = delete;

 private:
  uint32_t saved_;
};

// Returns the number of processors that this process may run on.
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
  // denormals flushed; returns when all are done. The first exception of a task is thrown again by run(),
  // after the other tasks ran. Two threads must not call run() at once, nor may a task call it.
  template <typename Fn>
  void run(int tasks, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run_region(
        tasks, [](void* f, int task, int thread) { (*static_cast<Plain*>(f))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void* fn, int task, int thread);

  // Counts the taken tasks of one thread's share: the high half is the epoch, the low half the number. Under
  // an older epoch none is taken yet.
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

  // The fields that the caller publishes, on one cache line. A thread that has claimed a task may read call_
  // and fn_.
  alignas(64) std::atomic<uint64_t> region_{0};  // epoch << 32 | tasks
  std::atomic<uint32_t> epoch_{0};               // idle workers watch it
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
