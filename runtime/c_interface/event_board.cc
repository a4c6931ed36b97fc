#include "runtime/c_interface/event_board.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "runtime/core/base/error.h"
#include "runtime/core/engine/merge_events.h"

namespace tensorwright {
namespace {

// In seconds: longer than anybody waits, and far from overflowing a clock.
constexpr double kForever = 1e7;

// Moves events to `news`, which has room for them. `events` keeps its own room.
void move_events(std::vector<Event>& events, int32_t open, std::vector<News>* news) {
  for (Event& event : events) news->push_back({std::move(event), open});
  events.clear();
}

}  // namespace

// The request is on the board before the engine can have an event of it.
void EventBoard::submit(Request request) {
  const int64_t id = request.id;
  {
    const std::lock_guard lock(mutex_);
    requests_[id].open = request.sampling.n;
  }
  try {
    engine_.submit(std::move(request));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    requests_.erase(id);
    throw;
  }
}

void EventBoard::wait(int64_t request, double timeout_s, const HandOver& hand_over) {
  using Seconds = std::chrono::duration<double>;
  using SteadyClock = std::chrono::steady_clock;
  const double bounded = std::isnan(timeout_s) ? 0 : timeout_s < 0 ? kForever : std::min(timeout_s, kForever);
  const auto deadline =
      SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(Seconds(bounded));
  std::unique_lock lock(mutex_);
  for (;;) {
    if (take(request, hand_over)) return;
    const double left = Seconds(deadline - SteadyClock::now()).count();
    if (!fetching_) {
      fetch(lock, std::max(0.0, left));
      if (take(request, hand_over)) return;
    } else if (left > 0) {
      news_.wait_until(lock, deadline);
      continue;  // also when the time is over: the events may have come with it
    }
    if (left <= 0) break;
  }
  std::vector<News> none;
  hand_over(none);
}

// Hands over the events that are there. Returns false if there are none and it is right to wait for some.
bool EventBoard::take(int64_t request, const HandOver& hand_over) {
  if (request == kAny) return take_any(hand_over);
  const auto found = requests_.find(request);
  if (found == requests_.end())
    throw Error("InvalidRequestError",
                "[request] a request must have events that nobody has fetched, got " +
                    std::to_string(request) +
                    ", which has ended or never was; wait for requests until their last event");
  Pending& pending = found->second;
  pending.claimed = true;
  if (pending.events.empty()) return false;
  std::vector<News> news;
  news.reserve(pending.events.size());
  move_events(pending.events, pending.open, &news);
  give(news, hand_over);
  if (pending.open == 0) requests_.erase(found);
  return true;
}

// Does what take() does, for all requests that nobody claims.
bool EventBoard::take_any(const HandOver& hand_over) {
  size_t count = 0, unclaimed = 0;
  for (const auto& [id, pending] : requests_) {
    if (pending.claimed) continue;
    count += pending.events.size();
    ++unclaimed;
  }
  if (unclaimed == 0 && ended_)
    throw Error("EngineStoppedError", "[engine] events must come from a running engine, got one that " +
                                          engine_.cause() + "; open the engine again");
  if (count == 0) return false;
  std::vector<News> news;
  news.reserve(count);
  for (auto& [id, pending] : requests_)
    if (!pending.claimed) move_events(pending.events, pending.open, &news);
  give(news, hand_over);
  std::erase_if(requests_, [](const auto& each) { return !each.second.claimed && each.second.open == 0; });
  return true;
}

// Hands news over. If that fails, their events go back to their requests, which have kept the room for them.
void EventBoard::give(std::vector<News>& news, const HandOver& hand_over) {
  try {
    hand_over(news);
  } catch (...) {
    for (News& each : news)
      requests_.find(each.event.request_id)->second.events.push_back(std::move(each.event));
    throw;
  }
}

// Fetches the engine's events while the lock is free. Those of an earlier call that found no memory are
// sorted first, so what is fetched always has a place.
void EventBoard::fetch(std::unique_lock<std::mutex>& lock, double timeout_s) {
  if (!unsorted_.empty()) {
    distribute();
    timeout_s = 0;  // they may be what somebody waits for
  }
  fetching_ = true;
  std::vector<Event> fetched;
  bool stopped = false;
  lock.unlock();
  try {
    stopped = engine_.stopped();  // read before the events, so that no event before the stop is missed
    fetched = engine_.wait_events(timeout_s);
  } catch (...) {
    lock.lock();
    fetching_ = false;
    news_.notify_all();
    throw;
  }
  lock.lock();
  fetching_ = false;
  ended_ = stopped && fetched.empty();
  news_.notify_all();
  unsorted_ = std::move(fetched);  // nobody else fetches meanwhile, so it was empty
  distribute();
}

// Sorts events by request. If it throws, those that are not sorted yet stay where they are.
void EventBoard::distribute() {
  size_t done = 0;
  const auto drop_sorted = [&] {
    unsorted_.erase(unsorted_.begin(), unsorted_.begin() + static_cast<std::ptrdiff_t>(done));
  };
  try {
    for (; done < unsorted_.size(); ++done) {
      Event& event = unsorted_[done];
      const auto found = requests_.find(event.request_id);
      if (found == requests_.end()) continue;
      Pending& pending = found->second;
      const bool last = !event.finish.empty();
      const auto same = std::ranges::find(pending.events, event.completion, &Event::completion);
      if (same != pending.events.end()) {
        merge_event(std::move(event), &*same);
      } else {
        pending.events.push_back(std::move(event));
      }
      if (last) --pending.open;
    }
  } catch (...) {
    drop_sorted();
    throw;
  }
  drop_sorted();
}

}  // namespace tensorwright
