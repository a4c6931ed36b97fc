#include "runtime/core/simulation/replica.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "runtime/core/base/error.h"
#include "runtime/core/simulation/counting_executor.h"

namespace tensorwright {

Replica::Replica(const ModelFacts& facts, const EngineOptions& options, const CostModel& costs, uint64_t seed)
    : core_(std::make_unique<CountingExecutor>(facts, costs, seed), options),
      facts_(facts),
      max_seqs_(options.max_batch_size),
      max_alive_(static_cast<size_t>(options.max_batch_size) + static_cast<size_t>(options.max_queue)) {
  facts_.vocab_size = std::numeric_limits<int32_t>::max();
}

bool Replica::offer(Request request, Clock::time_point now) {
  validate_request(request, facts_, core_.groups(), max_seqs_);
  if (core_.open() + inbox_.size() >= max_alive_) {
    ++use_.refused;
    return false;
  }
  inbox_.emplace_back(std::move(request), now);
  return true;
}

bool Replica::step(Clock::time_point now, std::vector<Event>* events) {
  for (auto& [request, arrived] : inbox_) core_.add(std::move(request), arrived);
  inbox_.clear();
  Clock::HeldHere::set(now);
  core_.expire(now, events);
  if (core_.idle()) {
    until_ = now;
    return !events->empty();
  }
  const int32_t waiting = core_.load().waiting;
  core_.step(events);
  until_ = Clock::now();
  count(until_ - now, waiting);
  return true;
}

// Counts the step that has ended. `waiting` is the number of requests that waited when it began: some of them
// may have started in it.
void Replica::count(Clock::duration length, int32_t waiting) noexcept {
  const EngineLoad load = core_.load();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(length).count();
  const double share = load.total_blocks > 0 ? static_cast<double>(load.used_blocks) / load.total_blocks : 0;
  const auto weight = static_cast<double>(ns);
  use_.busy_ns += ns;
  use_.running_ns += weight * load.running;
  use_.waiting_ns += weight * load.waiting;
  use_.used_share_ns += weight * share;
  use_.max_waiting = std::max({use_.max_waiting, load.waiting, waiting});
  use_.max_used_share = std::max(use_.max_used_share, share);
}

}  // namespace tensorwright
