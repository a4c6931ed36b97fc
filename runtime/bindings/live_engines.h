// Knows the engines of this process that are not destroyed yet, and stops them before the interpreter and the
// C++ statics are destroyed.
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
  pid_t process = getpid();          // the process that runs the engine's threads; a fork of it does not

  bool is_here() const { return process == getpid(); }
  // Must be called without the GIL. When it returns, the loop has ended and Python's resources are free.
  void shutdown(bool drain, double timeout_s);
};

class LiveEngines {
 public:
  // Throws Error{"EngineStoppedError"} once stop() was called, because the interpreter exits.
  void add(const std::shared_ptr<RunningEngine>& engine);
  // Destroys an engine, unless stop() still holds it. Must be called without the GIL. Called from inside an
  // executor, which may be the engine's own, it lets another thread destroy the engine. An engine of another
  // process is left as it is, because its threads cannot be joined.
  void destroy(std::shared_ptr<RunningEngine> engine);
  // Stops all engines. Must be called without the GIL.
  void stop();
  // Called around fork(), so that the mutex is free in the child, which has no engine yet.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  std::mutex mutex_;
  std::condition_variable destroyed_;
  bool stopped_ = false;
  int destroying_ = 0;  // engines that threads of their own are destroying
  std::vector<std::weak_ptr<RunningEngine>> engines_;
};

LiveEngines& live_engines();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_LIVE_ENGINES_H_
