// Engines of this process that are not destroyed yet: they are stopped before the interpreter and the C++
// statics go.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_LIVE_ENGINES_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_LIVE_ENGINES_H_

#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/bindings/python_executor.h"
#include "runtime/core/engine/engine.h"

namespace tensorwright {

// An engine, and its executor if that is written in Python.
struct RunningEngine {
  std::unique_ptr<Engine> engine;
  PythonExecutor* python = nullptr;  // belongs to the engine
  pid_t process = getpid();          // where its threads are; a fork of that process has only its memory

  bool is_here() const { return process == getpid(); }
  // Without the GIL. The loop has ended when it returns, and Python's resources are free.
  void shutdown(bool drain, double timeout_s);
};

class LiveEngines {
 public:
  // Throws Error{"EngineStoppedError"} once the interpreter is on its way out.
  void add(const std::shared_ptr<RunningEngine>& engine);
  // Destroys it, unless stop() is at it; without the GIL. From inside an executor, which may be the engine's
  // own, another thread does it. An engine of another process is left as it is: its threads cannot be joined.
  void destroy(std::shared_ptr<RunningEngine> engine);
  // Stops all; without the GIL.
  void stop();
  // Around fork(): nobody holds the mutex in the child, which has no engine yet.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  std::mutex mutex_;
  std::condition_variable destroyed_;
  bool stopped_ = false;
  int destroying_ = 0;  // by threads of their own
  std::vector<std::weak_ptr<RunningEngine>> engines_;
};

LiveEngines& live_engines();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_LIVE_ENGINES_H_
