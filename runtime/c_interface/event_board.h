// Hands out the events of an engine to whoever waits for them: for those of one request, or of all.
#ifndef TENSORWRIGHT_RUNTIME_C_INTERFACE_EVENT_BOARD_H_
#define TENSORWRIGHT_RUNTIME_C_INTERFACE_EVENT_BOARD_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
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
  using HandOver = std::function<void(std::vector<News>& news)>;

  explicit EventBoard(Engine& engine) : engine_(engine) {}

  // Submits a request of n completions to the engine, and keeps its events until they are fetched. Throws
  // what the engine throws.
  void submit(Request request);
  // Calls hand_over once, with the events so far of one request, or with kAny of all requests that nobody has
  // waited for by their number, each completion's merged into one. Waits up to `timeout_s` for the first one,
  // without limit if it is negative; if none comes, there are none to hand over. hand_over may take the news
  // away, as the last thing that it does: if it throws, all of them are there for the next call, and the
  // board passes the exception on. No other call goes on meanwhile. Throws Error{"InvalidRequestError"} for a
  // request that never was or whose last event was fetched, and for kAny Error{"EngineStoppedError"} once the
  // engine has stopped and all of them were fetched. No event is lost where there is no memory.
  void wait(int64_t request, double timeout_s, const HandOver& hand_over);
  static constexpr int64_t kAny = 0;

 private:
  // The events of a request that nobody has fetched, and how many completions have not ended.
  struct Pending {
    int32_t open;
    std::vector<Event> events;
    bool claimed = false;  // somebody waits for it by its number
  };
  using Requests = std::map<int64_t, Pending>;

  bool take(int64_t request, const HandOver& hand_over);
  bool take_any(const HandOver& hand_over);
  void give(std::vector<News>& news, const HandOver& hand_over);
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
