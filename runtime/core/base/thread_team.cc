#include "runtime/core/base/thread_team.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/start_thread.h"

namespace tensorwright {
namespace {

constexpr uint32_t kFlushDenormals = 0x8040;  // FTZ | DAZ of MXCSR
// Threads spin longer than the serial parts of a step take, and far shorter than a time slice of the system's
// scheduler.
constexpr int kSpinMicroseconds = 50;
// Epochs are compared modulo 2^32, so every share must be renewed within 2^31 regions.
constexpr uint64_t kRegionsPerRenewal = uint64_t{1} << 20;

using Clock = std::chrono::steady_clock;

// Spins until done(), or until `limit_us` microseconds have passed. Returns whether done() was true.
template <typename Done>
bool spin_until(int limit_us, Done&& done) {
  if (done()) return true;
  if (limit_us == 0) return false;
  const auto end = Clock::now() + std::chrono::microseconds(limit_us);
  do {
    for (int i = 0; i < 32; ++i) {
      _mm_pause();
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

DenormalGuard::DenormalGuard(bool flush) : saved_(_mm_getcsr()) {
  _mm_setcsr(flush ? saved_ | kFlushDenormals : saved_ & ~kFlushDenormals);
}
DenormalGuard::~DenormalGuard() { _mm_setcsr(saved_); }

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
    return std::min(CPU_COUNT(&set), ThreadTeam::kMaxThreads);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// With more threads than processors, threads do not spin: a spinning thread would keep the thread that it
// waits for from running.
ThreadTeam::ThreadTeam(int threads)
    : threads_(checked_threads(threads)),
      spin_us_(threads_ <= usable_processors() ? kSpinMicroseconds : 0),
      shares_(new Share[static_cast<size_t>(threads_)]) {
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

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  stop_.store(true);
  publish(0, nullptr, nullptr);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::publish(int tasks, Call call, void* fn) {
  call_ = call;
  fn_ = fn;
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  region_.store(uint64_t{epoch} << 32 | static_cast<uint32_t>(tasks), std::memory_order_release);
  // Both sides are sequentially consistent: either a worker sees the new epoch, or this thread sees that the
  // worker is parked.
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
}

void ThreadTeam::run_region(int tasks, Call call, void* fn) {
  const DenormalGuard guard;
  if (threads_ == 1 || tasks <= 1) {
    std::exception_ptr error;
    for (int task = 0; task < tasks; ++task) {
      try {
        call(fn, task, 0);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return;
  }
  finished_.store(0, std::memory_order_relaxed);
  if (++regions_ % kRegionsPerRenewal == 0) renew_shares();
  publish(tasks, call, fn);
  const int mine = take_tasks(0);
  await_finish(tasks - mine);
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

// Marks every share as all taken in the last region. May be called between regions only.
void ThreadTeam::renew_shares() {
  const uint64_t word = uint64_t{epoch_.load(std::memory_order_relaxed)} << 32 | UINT32_MAX;
  for (int i = 0; i < threads_; ++i)
    shares_[static_cast<size_t>(i)].taken.store(word, std::memory_order_relaxed);
}

void ThreadTeam::work(int thread) {
  const DenormalGuard guard;
  uint32_t seen = 0;
  for (;;) {
    seen = await_region(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    finish(take_tasks(thread));
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

// Runs tasks of the current region, first those of its own share, until none is left. Returns the number of
// tasks it ran.
int ThreadTeam::take_tasks(int thread) {
  const uint64_t region = region_.load(std::memory_order_acquire);
  const auto epoch = static_cast<uint32_t>(region >> 32);
  const auto tasks = static_cast<int>(static_cast<uint32_t>(region));
  int done = 0;
  for (int i = 0; i < threads_; ++i) {
    const int owner = thread + i < threads_ ? thread + i : thread + i - threads_;
    for (int task = claim(owner, epoch, tasks); task >= 0; task = claim(owner, epoch, tasks)) {
      try {
        call_(fn_, task, thread);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
      ++done;
    }
  }
  return done;
}

// Returns the next task of a share, or -1. A late thread, which still asks for a region that has ended, gets
// -1: every share of an ended region reads "all taken" or has a later epoch.
int ThreadTeam::claim(int owner, uint32_t epoch, int tasks) {
  const auto begin = static_cast<uint32_t>(int64_t{owner} * tasks / threads_);
  const auto end = static_cast<uint32_t>((int64_t{owner} + 1) * tasks / threads_);
  std::atomic<uint64_t>& taken = shares_[static_cast<size_t>(owner)].taken;
  uint64_t word = taken.load(std::memory_order_relaxed);
  for (;;) {
    const auto age = static_cast<int32_t>(epoch - static_cast<uint32_t>(word >> 32));
    const uint32_t next = age == 0 ? static_cast<uint32_t>(word) : 0;
    if (age < 0 || next >= end - begin) return -1;
    if (taken.compare_exchange_weak(word, uint64_t{epoch} << 32 | (next + 1), std::memory_order_acq_rel,
                                    std::memory_order_relaxed)) {
      return static_cast<int>(begin + next);
    }
  }
}

void ThreadTeam::finish(int done) {
  if (done == 0) return;
  finished_.fetch_add(static_cast<uint32_t>(done), std::memory_order_seq_cst);
  if (caller_waits_.load(std::memory_order_seq_cst) != 0) finished_.notify_one();
}

void ThreadTeam::await_finish(int expected) {
  const auto target = static_cast<uint32_t>(expected);
  const auto all = [&] { return finished_.load(std::memory_order_acquire) == target; };
  if (spin_until(spin_us_, all)) return;
  caller_waits_.store(1, std::memory_order_seq_cst);
  for (uint32_t now = finished_.load(std::memory_order_seq_cst); now != target;
       now = finished_.load(std::memory_order_seq_cst)) {
    finished_.wait(now, std::memory_order_seq_cst);
  }
  caller_waits_.store(0, std::memory_order_relaxed);
}

}  // namespace tensorwright
