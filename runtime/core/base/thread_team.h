// A persistent team of threads, N - 1 workers and the caller, runs one parallel region at a time.
//
// Each thread owns a contiguous share of a region's tasks (so a thread streams the same weights every step)
// and steals from the others once its own share is done: first in its own cluster, a few threads that share a
// cache, then in the clusters of its node, then elsewhere. A cluster counts what its threads have done, so
// that no line of memory is written by all threads in a region. Which thread ran a task must not matter to
// its result.
#ifndef TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_
#define TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/core/base/topology.h"
#include "runtime/core/base/work_cut.h"

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
  uint64_t saved_;
};

// Returns the number of processors that this process may run on.
int usable_processors();

class ThreadTeam {
 public:
  // threads: 1 to kMaxThreads, the caller included; 0 takes usable_processors(). Throws
  // Error{"InvalidOptionError"}.
  // placement: where the threads run, thread 0 being the caller (see pin_caller); empty: anywhere.
  explicit ThreadTeam(int threads, Placement placement = {});
  // Makes a team for measurements that has no workers: the caller runs every task, and the seconds of each
  // are kept. The operations cut their work as for `threads` threads.
  static ThreadTeam alone(int threads) { return ThreadTeam(threads, {}, true); }
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  static constexpr int kMaxThreads = 1024;
  // The most threads of a cluster, which count in one line of memory.
  static constexpr int kClusterThreads = 8;

  int threads() const { return threads_; }
  const Placement& placement() const { return placement_; }
  // How operations cut their work. It may be set between regions.
  const WorkCut& cut() const { return cut_; }
  void set_cut(const WorkCut& cut) { cut_ = cut; }
  // Keeps the calling thread to the processor of thread 0. The thread that calls run() calls it once.
  void pin_caller() const { pin(0); }

  // Calls fn(task, thread) once for every task in [0, tasks), on some thread in [0, threads()), with
  // denormals flushed; returns when all are done. The first exception of a task is thrown again by run(),
  // after the other tasks ran. Two threads must not call run() at once, nor may a task call it.
  template <typename Fn>
  void run(int tasks, Fn&& fn) {
    run_region(tasks, false, call_of(fn), address_of(fn));
  }
  // Calls fn(thread) once on every thread, where it is placed: nobody steals, and the caller is kept to the
  // processor of thread 0 meanwhile.
  template <typename Fn>
  void run_on_each(Fn&& fn) {
    const PinnedCaller pinned(*this);
    const auto body = [&fn](int /*task*/, int thread) { fn(thread); };
    run_region(threads_, true, call_of(body), address_of(body));
  }

  // Whether the team keeps the spans of its threads; off at first. It may be set between regions.
  void watch(bool on);
  // What a thread did in a region: its tasks, from the first to the last. Times are nanoseconds of the steady
  // clock.
  struct ThreadSpan {
    int thread = 0;
    int tasks = 0;
    int64_t begin = 0, end = 0;
  };
  // The spans of the regions since they were forgotten, while the team was watched.
  const std::vector<ThreadSpan>& spans() const { return spans_; }
  void forget_spans() { spans_.clear(); }

  // The seconds of the tasks of each region, in the order of the tasks; of a team that is alone.
  const std::vector<std::vector<double>>& recorded() const { return recorded_; }
  void forget_recorded() { recorded_.clear(); }

 private:
  using Call = void (*)(void* fn, int task, int thread);

  template <typename Fn>
  static Call call_of(Fn& /*fn*/) {
    return [](void* f, int task, int thread) { (*static_cast<Fn*>(f))(task, thread); };
  }
  template <typename Fn>
  static void* address_of(Fn& fn) {
    return const_cast<void*>(static_cast<const void*>(&fn));
  }

  class PinnedCaller {
   public:
    explicit PinnedCaller(const ThreadTeam& team);
    ~PinnedCaller() { keep_to_processors(before_); }
    PinnedCaller(const PinnedCaller&) = delete;
    PinnedCaller& operator=(const PinnedCaller&) = delete;

   private:
    std::vector<int> before_;  // empty: it was not pinned
  };

  // Counts in one word: the high half is the epoch, the low half the number. Under an older epoch it is 0.
  struct alignas(64) Count {
    std::atomic<uint64_t> word{0};
    uint32_t in(uint32_t epoch) const;
  };
  // Threads next to each other that share a cache.
  struct Cluster {
    int begin = 0, end = 0;  // threads
    std::vector<int> order;  // all clusters in the order in which these threads steal from them
    Count drained;           // shares of the cluster of which every task is taken
    alignas(64) std::atomic<uint32_t> finished{0};  // tasks that workers of the cluster ever ran
  };
  struct Region {
    uint32_t epoch;
    int tasks;
    bool bound;  // nobody steals
    int begin(int thread, int threads) const { return static_cast<int>(int64_t{thread} * tasks / threads); }
  };

  ThreadTeam(int threads, Placement placement, bool alone);
  void run_region(int tasks, bool bound, Call call, void* fn);
  void run_alone(int tasks, Call call, void* fn);
  void make_clusters();
  void publish(int tasks, bool bound, Call call, void* fn);
  void renew_counts();
  void stop();
  void pin(int thread) const;
  void work(int thread);
  int take_watched(int thread);
  void keep_spans(uint32_t epoch) noexcept;
  void keep_span(const ThreadSpan& span) noexcept;
  uint32_t await_region(uint32_t seen);
  int take_tasks(int thread, uint64_t word);
  int run_share(int owner, int thread, const Region& region);
  int claim(int owner, const Region& region);
  void count_drained(Cluster& cluster, uint32_t epoch);
  bool is_drained(const Cluster& cluster, const Region& region) const;
  Cluster& cluster_of(int thread) {
    return clusters_[static_cast<size_t>(cluster_of_[static_cast<size_t>(thread)])];
  }
  void finish(int thread, int done);
  uint32_t finished() const;
  void await_finish();

  const int threads_;
  const Placement placement_;
  const bool alone_;
  WorkCut cut_;
  const int spin_us_;
  std::unique_ptr<Count[]> shares_;  // [threads]: the tasks that are taken of each thread's share
  std::vector<Cluster> clusters_;
  std::vector<int> cluster_of_;  // [threads]
  uint64_t regions_ = 0;
  uint32_t expected_ = 0;  // what the clusters' `finished` will sum up to
  std::vector<std::vector<double>> recorded_;

  // What each thread did in the last region in which it had a task; written before the thread says that its
  // tasks are done.
  struct alignas(64) OwnSpan {
    uint32_t epoch = 0;
    ThreadSpan span;
  };
  std::atomic<bool> watched_{false};
  std::unique_ptr<OwnSpan[]> own_spans_;  // [threads]
  std::vector<ThreadSpan> spans_;

  // The fields that the caller publishes, on one cache line. A thread that has claimed a task may read call_
  // and fn_.
  alignas(64) std::atomic<uint64_t> region_{0};  // epoch << 32 | bound << 31 | tasks
  std::atomic<uint32_t> epoch_{0};               // idle workers watch it
  Call call_ = nullptr;
  void* fn_ = nullptr;

  alignas(64) std::atomic<uint32_t> caller_waits_{0};
  std::atomic<uint32_t> wakings_{0};        // workers that finished while the caller slept
  alignas(64) std::atomic<int> parked_{0};  // workers asleep, or about to be
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;

  std::vector<std::thread> workers_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_THREAD_TEAM_H_
