// Hands out the events of an engine to whoever waits for them: for those of one request, or of all.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_EVENT_BOARD_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_EVENT_BOARD_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/core/engine/engine.h"

namespace tensorwright {

// An event, and how many completions of its request go on after it and those that are fetched with it.
struct News {
  Event event;
  int32_t open;
};

// The board has no thread. Of those who wait one fetches the engine's events for all; when it has what it
// waits for, another one takes its place. Any thread may call the members.
class EventBoard {
 public:
  explicit EventBoard(Engine& engine) : engine_(engine) {}

  // Submits a request of n completions to the engine, and keeps its events until they are fetched. Throws
  // what the engine throws.
  void submit(Request request);
  // Returns the events so far of one request, or with kAny of all requests that nobody has waited for by
  // their number, each completion's merged into one. Waits up to `timeout_s` for the first one, without limit
  // if it is negative. Throws Error{"InvalidRequestError"} for a request that never was or whose last event
  // was fetched, and for kAny Error{"EngineStoppedError"} once the engine has stopped and all of them were
  // fetched.
  std::vector<News> wait(int64_t request, double timeout_s);
  static constexpr int64_t kAny = 0;

 private:
  // The events of a request that nobody has fetched, and how many completions have not ended.
  struct Pending {
    int32_t open;
    std::vector<Event> events;
    bool claimed = false;  // somebody waits for it by its number
  };
  using Requests = std::map<int64_t, Pending>;

  std::optional<std::vector<News>> take(int64_t request);
  void take_from(Requests::iterator found, std::vector<News>* taken);
  void fetch(std::unique_lock<std::mutex>& lock, double timeout_s);
  void distribute();

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable news_;
  bool fetching_ = false;        // somebody waits for the engine's events
  bool ended_ = false;           // the engine has stopped, and has no more events
  std::vector<Event> unsorted_;  // fetched events that found no memory to be sorted
  Requests requests_;            // those whose last event was not fetched
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_C_INTERFACE_EVENT_BOARD_H_
