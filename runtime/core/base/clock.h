// The clock that measures requests.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CLOCK_H_
#define TENSORWRIGHT_RUNTIME_CORE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <limits>

namespace tensorwright {

// The machine's steady clock. A test may stop it for the whole process, and a simulation for its own thread.
class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() {
    if (held_here_ != kRunning) return time_point(duration(held_here_));
    rep held = held_.load(std::memory_order_relaxed);
    return held == kRunning ? std::chrono::steady_clock::now() : time_point(duration(held));
  }
  // For tests: the clock shows the time `at` until the next call of hold() or release().
  static void hold(time_point at) { held_.store(at.time_since_epoch().count(), std::memory_order_relaxed); }
  static void release() { held_.store(kRunning, std::memory_order_relaxed); }

  // While one of these lives, the clock of its thread shows the time that set() was called with last, from 0
  // on. The clocks of all other threads run on. A thread may have one of these at a time.
  class HeldHere {
   public:
    HeldHere() { held_here_ = 0; }
    ~HeldHere() { held_here_ = kRunning; }
    HeldHere(const HeldHere&) = delete;
    HeldHere& operator=(const HeldHere&) = delete;
    static void set(time_point at) { held_here_ = at.time_since_epoch().count(); }
  };

 private:
  static constexpr rep kRunning = std::numeric_limits<rep>::min();
  static inline std::atomic<rep> held_{kRunning};
  static inline thread_local constinit rep held_here_ = kRunning;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CLOCK_H_
