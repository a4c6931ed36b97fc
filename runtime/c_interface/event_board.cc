#include "runtime/c_interface/event_board.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/core/base/error.h"
#include "runtime/core/engine/merge_events.h"

namespace tensorwright {
namespace {

// In seconds: longer than anybody waits, and far from overflowing a clock.
constexpr double kForever = 1e7;

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

std::vector<News> EventBoard::wait(int64_t request, double timeout_s) {
  using Seconds = std::chrono::duration<double>;
  using SteadyClock = std::chrono::steady_clock;
  const double bounded = std::isnan(timeout_s) ? 0 : timeout_s < 0 ? kForever : std::min(timeout_s, kForever);
  const auto deadline =
      SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(Seconds(bounded));
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto taken = take(request)) return std::move(*taken);
    const double left = Seconds(deadline - SteadyClock::now()).count();
    if (!fetching_) {
      fetch(lock, std::max(0.0, left));
      if (auto taken = take(request)) return std::move(*taken);
    } else if (left > 0) {
      news_.wait_until(lock, deadline);
      continue;  // also when the time is over: the events may have come with it
    }
    if (left <= 0) return {};
  }
}

// Returns the events that are there; none if it is right to wait for some.
std::optional<std::vector<News>> EventBoard::take(int64_t request) {
  std::vector<News> taken;
  if (request == kAny) {
    size_t count = 0, unclaimed = 0;
    for (const auto& [id, pending] : requests_) {
      if (pending.claimed) continue;
      count += pending.events.size();
      ++unclaimed;
    }
    taken.reserve(count);
    for (auto each = requests_.begin(); each != requests_.end();) {
      const auto found = each++;
      if (!found->second.claimed) take_from(found, &taken);
    }
    if (unclaimed == 0 && ended_)
      throw Error("EngineStoppedError", "[engine] events must come from a running engine, got one that " +
                                            engine_.cause() + "; open the engine again");
  } else if (const auto found = requests_.find(request); found != requests_.end()) {
    found->second.claimed = true;
    taken.reserve(found->second.events.size());
    take_from(found, &taken);
  } else {
    throw Error("InvalidRequestError",
                "[request] a request must have events that nobody has fetched, got " +
                    std::to_string(request) +
                    ", which has ended or never was; wait for requests until their last event");
  }
  if (taken.empty()) return std::nullopt;
  return taken;
}

// Moves the events of a request to `taken`, which has room for them.
void EventBoard::take_from(Requests::iterator found, std::vector<News>* taken) {
  Pending& pending = found->second;
  for (Event& event : pending.events) taken->push_back({std::move(event), pending.open});
  pending.events.clear();
  if (pending.open == 0) requests_.erase(found);
}

// Fetches the engine's events while the lock is free.
void EventBoard::fetch(std::unique_lock<std::mutex>& lock, double timeout_s) {
  fetching_ = true;
  if (!unsorted_.empty()) timeout_s = 0;  // there is something to sort
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
  ended_ = stopped && fetched.empty() && unsorted_.empty();
  news_.notify_all();
  if (unsorted_.empty()) {
    unsorted_ = std::move(fetched);
  } else {
    std::ranges::move(fetched, std::back_inserter(unsorted_));
  }
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
