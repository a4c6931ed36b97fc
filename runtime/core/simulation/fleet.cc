#include "runtime/core/simulation/fleet.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

Clock::time_point time_at(int64_t ns) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(ns)));
}

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Returns the percentile of values that are not empty, between two of them on the line between, as numpy
// does. It changes their order.
double percentile(std::vector<int64_t>& values, double percent) {
  const double place = percent / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(low);
  std::ranges::nth_element(values, at);
  const auto below = static_cast<double>(*at);
  if (low + 1 >= values.size()) return below;
  const auto above = static_cast<double>(*std::min_element(at + 1, values.end()));
  return below + (place - static_cast<double>(low)) * (above - below);
}

void check_blocks(const std::vector<GroupShape>& groups, int32_t replicas) {
  int64_t blocks = 0;
  for (const GroupShape& group : groups) blocks += group.blocks;
  if (blocks * replicas <= FleetOptions::kMaxBlocks) return;
  throw Error(
      "InvalidOptionError",
      concat("[fleet] all replicas together must have at most ", FleetOptions::kMaxBlocks, " KV blocks, got ",
             replicas, " times ", blocks, "; simulate fewer replicas, or a smaller kv_cache_memory"));
}

}  // namespace

Fleet::Fleet(const ModelFacts& facts, const EngineOptions& options, const StepPrices& prices,
             const FleetOptions& fleet)
    : costs_(facts, prices), gap_percentile_(fleet.gap_percentile) {
  if (fleet.replicas < 1 || fleet.replicas > FleetOptions::kMaxReplicas)
    throw Error("InvalidOptionError", concat("[fleet] there must be 1 to ", FleetOptions::kMaxReplicas,
                                             " replicas, got ", fleet.replicas));
  if (!(gap_percentile_ > 0 && gap_percentile_ <= 100))
    throw Error("InvalidOptionError",
                concat("[fleet] a percentile must be above 0, up to 100, got ", gap_percentile_));
  validate_options(options);
  check_blocks(share_blocks(facts, options), fleet.replicas);
  for (int32_t i = 0; i < fleet.replicas; ++i)
    replicas_.emplace_back(facts, options, costs_,
                           fleet.seed * FleetOptions::kMaxReplicas + static_cast<uint64_t>(i));
  events_.resize(replicas_.size());
}

void Fleet::run(const Traffic& traffic, const FleetRouter& router) {
  if (!last_token_.empty()) throw std::logic_error("[fleet] a fleet runs once");
  traffic.check();
  arrivals_ = traffic.arrivals;
  outcomes_ = Outcomes(traffic.size());
  gaps_of_.resize(traffic.size());
  last_token_.assign(traffic.size(), -1);
  const Clock::HeldHere held;
  size_t next = 0;
  while (next < traffic.size() || !turns_.empty()) {
    if (next < traffic.size() && (turns_.empty() || time_at(traffic.arrivals[next]) <= turns_.top().first)) {
      arrive(next++, traffic, router);
      continue;
    }
    const Turn first = turns_.top();
    turns_.pop();
    turn(first, router);
  }
}

void Fleet::arrive(size_t request, const Traffic& traffic, const FleetRouter& router) {
  const Time now = time_at(traffic.arrivals[request]);
  Clock::HeldHere::set(now);
  const int32_t chosen = router.choose(request);
  if (chosen < 0 || static_cast<size_t>(chosen) >= replicas_.size())
    throw Error("InvalidOptionError", concat("[fleet] the router must choose one of ", replicas_.size(),
                                             " replicas, got ", chosen));
  Replica& replica = replicas_[static_cast<size_t>(chosen)];
  if (!replica.offer(traffic.make(request), now)) {
    router.finished(request);
    return;
  }
  outcomes_.replicas[request] = chosen;
  if (replica.awake) return;
  replica.awake = true;
  turns_.emplace(now, chosen);
}

// Ends a replica's step and begins its next one.
void Fleet::turn(Turn turn, const FleetRouter& router) {
  const auto [now, number] = turn;
  const auto place = static_cast<size_t>(number);
  for (const Event& event : events_[place]) take(event, now, router);
  events_[place].clear();
  Replica& replica = replicas_[place];
  replica.awake = replica.step(now, &events_[place]);
  if (replica.awake) turns_.emplace(replica.until(), number);
}

void Fleet::take(const Event& event, Time now, const FleetRouter& router) {
  const auto request = static_cast<size_t>(event.request_id);
  if (event.finish == finishes::kError && event.error_type == "DeadlineError") {
    outcomes_.late[request] = 1;
    return end_request(request, router);
  }
  if (event.finish == finishes::kError) throw Error(event.error_type, event.error);
  const int64_t at = nanoseconds(now);
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    ++outcomes_.generated[request];
    int64_t& last = last_token_[request];
    if (last < 0) {
      outcomes_.first[request] = at;
      outcomes_.started[request] = arrivals_[request] + std::llround(event.queue_s * 1e9);
      outcomes_.cached[request] = event.cached_tokens;
    } else {
      gaps_of_[request].push_back(at - last);
      gaps_.add(at - last);
    }
    last = at;
  }
  if (event.finish.empty()) return;
  outcomes_.ended[request] = at;
  end_request(request, router);
}

void Fleet::end_request(size_t request, const FleetRouter& router) {
  std::vector<int64_t> gaps = std::move(gaps_of_[request]);
  gaps_of_[request] = {};
  if (!gaps.empty()) outcomes_.gaps[request] = static_cast<float>(percentile(gaps, gap_percentile_) * 1e-9);
  router.finished(request);
}

}  // namespace tensorwright
