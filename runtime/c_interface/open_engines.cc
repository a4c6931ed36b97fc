#include "runtime/c_interface/open_engines.h"

#include <pthread.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

namespace tensorwright {
namespace {

struct OpenEngines {
  std::mutex mutex;
  uintptr_t last = 0;
  std::map<uintptr_t, std::shared_ptr<ServedEngine>> engines;
};

// It is never destroyed: threads may call this interface while the process exits.
OpenEngines& open_engines() {
  static auto* const engines = new OpenEngines;
  return *engines;
}

// Ends the engines' threads before statics are destroyed that they use. In a fork there are no such threads.
void end_all() {
  std::map<uintptr_t, std::shared_ptr<ServedEngine>> engines;
  {
    OpenEngines& open = open_engines();
    const std::lock_guard lock(open.mutex);
    engines.swap(open.engines);
  }
  for (auto& [number, engine] : engines) {
    if (engine->is_here()) {
      engine->shutdown(0);
    } else {
      new std::shared_ptr<ServedEngine>(std::move(engine));  // its threads cannot be joined here
    }
  }
}

void prepare() {
  static const bool prepared = [] {
    std::atexit(end_all);
    // A fork gets the mutex free, whoever held it.
    pthread_atfork([] { open_engines().mutex.lock(); }, [] { open_engines().mutex.unlock(); },
                   [] { open_engines().mutex.unlock(); });
    return true;
  }();
  static_cast<void>(prepared);
}

}  // namespace

uintptr_t keep_open(std::unique_ptr<ServedEngine> engine) {
  prepare();
  OpenEngines& open = open_engines();
  const std::lock_guard lock(open.mutex);
  open.engines.emplace(open.last + 1, std::move(engine));
  return ++open.last;
}

std::shared_ptr<ServedEngine> find_open(uintptr_t number) {
  OpenEngines& open = open_engines();
  const std::lock_guard lock(open.mutex);
  const auto found = open.engines.find(number);
  return found == open.engines.end() ? nullptr : found->second;
}

std::shared_ptr<ServedEngine> take_open(uintptr_t number) {
  OpenEngines& open = open_engines();
  const std::lock_guard lock(open.mutex);
  const auto found = open.engines.find(number);
  if (found == open.engines.end()) return nullptr;
  std::shared_ptr<ServedEngine> engine = std::move(found->second);
  open.engines.erase(found);
  return engine;
}

}  // namespace tensorwright
