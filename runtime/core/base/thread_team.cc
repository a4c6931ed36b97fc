#include "runtime/core/base/thread_team.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <span>
#include <tuple>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/processor.h"
#include "runtime/core/base/start_thread.h"
#include "runtime/core/base/timeline.h"

namespace tensorwright {
namespace {

// Threads spin longer than the serial parts of a step take, and far shorter than a time slice of the system's
// scheduler.
constexpr int kSpinMicroseconds = 50;
// Epochs are compared modulo 2^32, so every share must be renewed within 2^31 regions.
constexpr uint64_t kRegionsPerRenewal = uint64_t{1} << 20;
constexpr uint32_t kBound = uint32_t{1} << 31;  // of the low half of region_

using Clock = std::chrono::steady_clock;

// Spins until done(), or until `limit_us` microseconds have passed. Returns whether done() was true.
template <typename Done>
bool spin_until(int limit_us, Done&& done) {
  if (done()) return true;
  if (limit_us == 0) return false;
  const auto end = Clock::now() + std::chrono::microseconds(limit_us);
  do {
    for (int i = 0; i < 32; ++i) {
      pause_briefly();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

int checked_threads(int threads) {
  if (threads < 0 || threads > ThreadTeam::kMaxThreads) {
    throw Error("InvalidOptionError", concat("threads must be 1 to ", ThreadTeam::kMaxThreads,
                                             ", or 0 for one per processor, is ", threads));
  }
  return threads == 0 ? usable_processors() : threads;
}

}  // namespace

DenormalGuard::DenormalGuard(bool flush) : saved_(float_control()) {
  set_float_control(flush ? saved_ | kFlushDenormals : saved_ & ~kFlushDenormals);
}
DenormalGuard::~DenormalGuard() { set_float_control(saved_); }

int usable_processors() {
  const auto usable = static_cast<int>(usable_processor_ids().size());
  if (usable > 0) return std::min(usable, ThreadTeam::kMaxThreads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadTeam::ThreadTeam(int threads, Placement placement) : ThreadTeam(threads, std::move(placement), false) {}

// With more threads than processors, threads do not spin: a spinning thread would keep the thread that it
// waits for from running.
ThreadTeam::ThreadTeam(int threads, Placement placement, bool alone)
    : threads_(checked_threads(threads)),
      placement_(std::move(placement)),
      alone_(alone),
      spin_us_(threads_ <= usable_processors() ? kSpinMicroseconds : 0),
      shares_(new Count[static_cast<size_t>(threads_)]) {
  make_clusters();
  if (alone_) return;
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  try {
    for (int thread = 1; thread < threads_; ++thread) {
      workers_.push_back(start_thread("the team", [this, thread] { work(thread); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

// A cluster ends after kClusterThreads threads, and where a cache ends.
void ThreadTeam::make_clusters() {
  const auto cache = [this](int thread) {
    return placement_.processors.empty() ? 0 : placement_.processors[static_cast<size_t>(thread)].cache;
  };
  std::vector<std::pair<int, int>> ranges;
  for (int thread = 0; thread < threads_; ++thread) {
    const bool begins = ranges.empty() || thread - ranges.back().first == kClusterThreads ||
                        cache(thread) != cache(thread - 1);
    if (begins) ranges.emplace_back(thread, thread);
    ranges.back().second = thread + 1;
    cluster_of_.push_back(static_cast<int>(ranges.size()) - 1);
  }
  const auto count = static_cast<int>(ranges.size());
  clusters_ = std::vector<Cluster>(ranges.size());
  for (int i = 0; i < count; ++i) {
    Cluster& cluster = clusters_[static_cast<size_t>(i)];
    std::tie(cluster.begin, cluster.end) = ranges[static_cast<size_t>(i)];
    for (bool near : {true, false}) {
      for (int step = 0; step < count; ++step) {
        const int other = (i + step) % count;
        const int node = placement_.node(ranges[static_cast<size_t>(other)].first);
        if ((node == placement_.node(cluster.begin)) == near) cluster.order.push_back(other);
      }
    }
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  stop_.store(true);
  publish(0, false, nullptr, nullptr);
  for (std::thread& worker : workers_) worker.join();
}

ThreadTeam::PinnedCaller::PinnedCaller(const ThreadTeam& team) {
  if (team.placement_.processors.empty()) return;
  before_ = usable_processor_ids();
  team.pin_caller();
}

void ThreadTeam::pin(int thread) const {
  if (!placement_.processors.empty())
    keep_to_processors(std::span(&placement_.processors[static_cast<size_t>(thread)].id, 1));
}

void ThreadTeam::publish(int tasks, bool bound, Call call, void* fn) {
  call_ = call;
  fn_ = fn;
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  const uint32_t what = static_cast<uint32_t>(tasks) | (bound ? kBound : 0);
  region_.store(uint64_t{epoch} << 32 | what, std::memory_order_release);
  // Both sides are sequentially consistent: either a worker sees the new epoch, or this thread sees that the
  // worker is parked.
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
}

void ThreadTeam::run_region(int tasks, bool bound, Call call, void* fn) {
  const DenormalGuard guard;
  if (threads_ == 1 || alone_ || (tasks <= 1 && !bound)) return run_alone(tasks, call, fn);
  if (++regions_ % kRegionsPerRenewal == 0) renew_counts();
  publish(tasks, bound, call, fn);
  expected_ += static_cast<uint32_t>(tasks - take_watched(0));
  await_finish();
  if (watched_.load(std::memory_order_relaxed)) keep_spans(epoch_.load(std::memory_order_relaxed));
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

// Runs a region on the calling thread. A team that is alone gives each task the number of the thread whose
// share it is in.
void ThreadTeam::run_alone(int tasks, Call call, void* fn) {
  std::exception_ptr error;
  std::vector<double> seconds;
  const bool watched = watched_.load(std::memory_order_relaxed);
  const int64_t first = watched ? Timeline::now() : 0;
  if (alone_) seconds.reserve(static_cast<size_t>(tasks));
  for (int task = 0; task < tasks; ++task) {
    const int thread = alone_ ? static_cast<int>(int64_t{task} * threads_ / tasks) : 0;
    const Clock::time_point begin = alone_ ? Clock::now() : Clock::time_point();
    try {
      call(fn, task, thread);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (alone_) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (alone_) recorded_.push_back(std::move(seconds));
  if (watched) keep_span({0, tasks, first, Timeline::now()});
  if (error) std::rethrow_exception(error);
}

uint32_t ThreadTeam::Count::in(uint32_t epoch) const {
  const uint64_t now = word.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(now >> 32) == epoch ? static_cast<uint32_t>(now) : 0;
}

// Marks every share as all taken in the last region. May be called between regions only.
void ThreadTeam::renew_counts() {
  const uint64_t word = uint64_t{epoch_.load(std::memory_order_relaxed)} << 32 | UINT32_MAX;
  for (int i = 0; i < threads_; ++i)
    shares_[static_cast<size_t>(i)].word.store(word, std::memory_order_relaxed);
  for (Cluster& cluster : clusters_) cluster.drained.word.store(word, std::memory_order_relaxed);
}

void ThreadTeam::work(int thread) {
  const DenormalGuard guard;
  pin(thread);
  uint32_t seen = 0;
  for (;;) {
    seen = await_region(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    finish(thread, take_watched(thread));
  }
}

uint32_t ThreadTeam::await_region(uint32_t seen) {
  const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  if (!spin_until(spin_us_, changed)) {
    parked_.fetch_add(1, std::memory_order_seq_cst);
    epoch_.wait(seen, std::memory_order_seq_cst);
    parked_.fetch_sub(1, std::memory_order_relaxed);
  }
  return epoch_.load(std::memory_order_acquire);
}

// Takes tasks, and keeps when, if the team is watched. A region in which a thread has had a task does not end
// before the thread says so, and until then the caller reads no span.
int ThreadTeam::take_watched(int thread) {
  const uint64_t word = region_.load(std::memory_order_acquire);
  if (!watched_.load(std::memory_order_acquire)) return take_tasks(thread, word);
  const int64_t begin = Timeline::now();
  const int done = take_tasks(thread, word);
  if (done > 0) {
    own_spans_[static_cast<size_t>(thread)] = {static_cast<uint32_t>(word >> 32),
                                               {thread, done, begin, Timeline::now()}};
  }
  return done;
}

void ThreadTeam::watch(bool on) {
  if (on && !own_spans_) own_spans_ = std::make_unique<OwnSpan[]>(static_cast<size_t>(threads_));
  watched_.store(on, std::memory_order_release);
}

// Keeps what the threads did in the region that has just ended.
void ThreadTeam::keep_spans(uint32_t epoch) noexcept {
  for (int i = 0; i < threads_; ++i) {
    const OwnSpan& own = own_spans_[static_cast<size_t>(i)];
    if (own.epoch == epoch) keep_span(own.span);
  }
}

// A span for which there is no memory is left out.
void ThreadTeam::keep_span(const ThreadSpan& span) noexcept {
  try {
    spans_.push_back(span);
  } catch (const std::bad_alloc&) {
    spans_.clear();
  }
}

// Runs tasks of the region that region_ held as `word`, first those of its own share, until none is left.
// Returns the number of tasks it ran.
int ThreadTeam::take_tasks(int thread, uint64_t word) {
  const auto what = static_cast<uint32_t>(word);
  const Region region{static_cast<uint32_t>(word >> 32), static_cast<int>(what & ~kBound),
                      (what & kBound) != 0};
  int done = run_share(thread, thread, region);
  if (region.bound) return done;
  const Cluster& own = cluster_of(thread);
  for (int other : own.order) {
    const Cluster& cluster = clusters_[static_cast<size_t>(other)];
    if (is_drained(cluster, region)) continue;
    const int size = cluster.end - cluster.begin;
    // Thieves of one cluster begin behind themselves, so that they do not all ask the same thread first.
    for (int i = 1; i <= size; ++i) {
      const int owner = cluster.begin + (thread - own.begin + i) % size;
      done += run_share(owner, thread, region);
    }
  }
  return done;
}

// Runs what is left of a share. Returns the number of tasks.
int ThreadTeam::run_share(int owner, int thread, const Region& region) {
  int done = 0;
  for (int task = claim(owner, region); task >= 0; task = claim(owner, region), ++done) {
    try {
      call_(fn_, task, thread);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }
  return done;
}

// Returns the next task of a share, or -1. A late thread, which still asks for a region that has ended, gets
// -1: every share of an ended region reads "all taken" or has a later epoch.
int ThreadTeam::claim(int owner, const Region& region) {
  const int begin = region.begin(owner, threads_);
  const auto count = static_cast<uint32_t>(region.begin(owner + 1, threads_) - begin);
  std::atomic<uint64_t>& taken = shares_[static_cast<size_t>(owner)].word;
  uint64_t word = taken.load(std::memory_order_relaxed);
  for (;;) {
    const auto age = static_cast<int32_t>(region.epoch - static_cast<uint32_t>(word >> 32));
    const uint32_t next = age == 0 ? static_cast<uint32_t>(word) : 0;
    if (age < 0 || next >= count) return -1;
    if (taken.compare_exchange_weak(word, uint64_t{region.epoch} << 32 | (next + 1),
                                    std::memory_order_acq_rel, std::memory_order_relaxed)) {
      if (next + 1 == count) count_drained(cluster_of(owner), region.epoch);
      return begin + static_cast<int>(next);
    }
  }
}

// Counts a share of which the last task was taken. The region cannot end before this task is done.
void ThreadTeam::count_drained(Cluster& cluster, uint32_t epoch) {
  std::atomic<uint64_t>& drained = cluster.drained.word;
  uint64_t word = drained.load(std::memory_order_relaxed), next = 0;
  do {
    const uint32_t before = static_cast<uint32_t>(word >> 32) == epoch ? static_cast<uint32_t>(word) : 0;
    next = uint64_t{epoch} << 32 | (before + 1);
  } while (!drained.compare_exchange_weak(word, next, std::memory_order_relaxed));
}

// Whether nothing is left to take of a cluster's shares. Without enough tasks some shares have none.
bool ThreadTeam::is_drained(const Cluster& cluster, const Region& region) const {
  const int tasks = region.begin(cluster.end, threads_) - region.begin(cluster.begin, threads_);
  const int shares = region.tasks >= threads_ ? cluster.end - cluster.begin : tasks;
  return cluster.drained.in(region.epoch) >= static_cast<uint32_t>(shares);
}

void ThreadTeam::finish(int thread, int done) {
  if (done == 0) return;
  cluster_of(thread).finished.fetch_add(static_cast<uint32_t>(done), std::memory_order_seq_cst);
  if (caller_waits_.load(std::memory_order_seq_cst) == 0) return;
  wakings_.fetch_add(1, std::memory_order_seq_cst);
  wakings_.notify_one();
}

uint32_t ThreadTeam::finished() const {
  uint32_t sum = 0;
  for (const Cluster& cluster : clusters_) sum += cluster.finished.load(std::memory_order_seq_cst);
  return sum;
}

void ThreadTeam::await_finish() {
  if (spin_until(spin_us_, [&] { return finished() == expected_; })) return;
  caller_waits_.store(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t before = wakings_.load(std::memory_order_seq_cst);
    if (finished() == expected_) break;
    wakings_.wait(before, std::memory_order_seq_cst);
  }
  caller_waits_.store(0, std::memory_order_relaxed);
}

}  // namespace tensorwright
