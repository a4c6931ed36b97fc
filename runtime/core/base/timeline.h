// Keeps what an engine did when: steps, the requests in them, instructions, and the work of each thread.
//
// It has room for a fixed number of spans, and some more for those of steps and requests, of which there are
// few. What comes when it is full is counted and not kept, so that a server that runs for days takes no more
// memory than one that ran for a minute.
#ifndef TENSORWRIGHT_RUNTIME_CORE_TIMELINE_H_
#define TENSORWRIGHT_RUNTIME_CORE_TIMELINE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tensorwright {

// The kinds of spans; runtime/engine/trace_file.py has the same numbers. What `id`, `track`, `a`, `b`, `c`
// and `d` of a span mean:
enum class SpanKind : int32_t {
  kStep = 0,    // id: number of the step; a: tokens; b: sequences; c: rows of logits; d: requests that wait
  kShare = 1,   // a sequence in a step. id: request; track: completion; a: tokens; b: its first position
  kSample = 2,  // the draws behind a step. id: number of the step; a: rows; b: free blocks; c: running
  kOp = 3,      // an instruction. id: its number in the plan; a: tokens of the step
  kTasks = 4,   // the tasks of an instruction that a thread ran. id: the instruction; track: thread; a: tasks
  kArrived = 5,  // a request came. id: request; a: tokens of its prompt
  kEnded = 6,    // a completion ended. id: request; track: completion
  kMicrobatch =
      7,  // a part of a step in one stage of a parallel engine. id: its number; track: stage; a: tokens
};

// Times are nanoseconds of the steady clock.
struct Span {
  int64_t begin = 0, end = 0, id = 0;
  SpanKind kind = SpanKind::kStep;
  int32_t track = 0, a = 0, b = 0, c = 0, d = 0;
};

class Timeline {
 public:
  static constexpr size_t kMaxSpans = size_t{1} << 21;
  static constexpr size_t kMoreOfSteps = kMaxSpans / 8;  // for all but instructions and tasks

  // Any thread may call these. add() never throws: a span for which there is no room, or no memory, is
  // dropped and counted.
  void add(const Span& span) noexcept;
  std::vector<Span> spans() const;
  int64_t dropped() const;
  // Whether there is no room for instructions and tasks.
  bool full() const { return full_.load(std::memory_order_relaxed); }

  static int64_t nanoseconds(std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  static int64_t now() { return nanoseconds(std::chrono::steady_clock::now()); }

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  int64_t dropped_ = 0;
  std::atomic<bool> full_{false};
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_TIMELINE_H_
