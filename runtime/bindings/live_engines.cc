#include "runtime/bindings/live_engines.h"

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <thread>
#include <utility>

#include "runtime/bindings/python_rows.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;

namespace tensorwright {

void RunningEngine::shutdown(bool drain, double timeout_s) {
  if (python && python->called_here()) {
    throw Error(
        "InvalidRequestError",
        "[engine] shutdown must be called by another thread than the engine's own, got a call from inside "
        "its executor; it would wait for itself");
  }
  engine->shutdown(drain, timeout_s);
  if (python) python->close();
}

void LiveEngines::add(const std::shared_ptr<RunningEngine>& engine) {
  std::lock_guard lock(mutex_);
  if (stopped_) {
    throw Error(
        "EngineStoppedError",
        "[engine] an engine must be made before the interpreter exits, got one at exit; make it earlier");
  }
  std::erase_if(engines_, [](const auto& each) { return each.expired(); });
  engines_.push_back(engine);
}

void LiveEngines::destroy(std::shared_ptr<RunningEngine> engine) {
  if (engine && !engine->is_here()) {
    new std::shared_ptr<RunningEngine>(std::move(engine));  // never freed
    return;
  }
  if (!PythonExecutor::calls_here() && !PythonRows::calls_here())
    return;  // destroyed at this return, unless stop() has a reference too
  std::lock_guard lock(mutex_);
  ++destroying_;
  std::thread([this, engine = std::move(engine)]() mutable {
    engine.reset();
    std::lock_guard done(mutex_);
    --destroying_;
    destroyed_.notify_all();
  }).detach();
}

// Shuts the engines down without the lock, because the loops that end may destroy other engines.
void LiveEngines::stop() {
  std::vector<std::shared_ptr<RunningEngine>> engines;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& each : engines_) {
      if (auto engine = each.lock()) engines.push_back(std::move(engine));
    }
  }
  for (const auto& engine : engines) engine->shutdown(false, 0);
  engines.clear();
  std::unique_lock lock(mutex_);
  destroyed_.wait(lock, [&] { return destroying_ == 0; });
}

void LiveEngines::after_fork_in_child() {
  engines_.clear();
  destroying_ = 0;
  mutex_.unlock();
  nb::set_leak_warnings(false);  // objects in frames of the parent's threads are never freed here
}

LiveEngines& live_engines() {
  static LiveEngines* engines = [] {
    pthread_atfork([] { live_engines().before_fork(); }, [] { live_engines().after_fork_in_parent(); },
                   [] { live_engines().after_fork_in_child(); });
    return new LiveEngines;  // never destroyed, so it outlives every caller
  }();
  return *engines;
}

}  // namespace tensorwright
