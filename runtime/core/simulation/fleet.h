// Runs requests through several engines at once on a virtual clock.
//
// The fleet goes from event to event: a request arrives, or a step ends. A request that arrives is sent to
// the replica that the router names, and its next step takes it in, as in the served engine (engine.cc). At
// the end of a step its tokens are there, the router hears of the requests that have ended, and the next step
// begins at once if there is work. Of events at the same time arrivals come first, in their order, then the
// ends of steps, in the order of the replicas' numbers. So the same traffic gives the same outcomes.
#ifndef TENSORWRIGHT_RUNTIME_CORE_FLEET_H_
#define TENSORWRIGHT_RUNTIME_CORE_FLEET_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/simulation/gap_counts.h"
#include "runtime/core/simulation/replica.h"
#include "runtime/core/simulation/traffic.h"

namespace tensorwright {

// Decides where requests go. Both functions may throw; then the simulation ends.
struct FleetRouter {
  std::function<int32_t(size_t request)> choose;  // returns the number of a replica
  // The request has ended, or its replica refused it.
  std::function<void(size_t request)> finished;
};

struct FleetOptions {
  int32_t replicas = 1;
  // The percentile of the times between a request's tokens that Outcomes::gaps has, above 0 up to 100.
  double gap_percentile = 99;
  uint64_t seed = 0;  // of the draws of how long steps take; each replica has draws of its own
  static constexpr int32_t kMaxReplicas = 1000;
  // The most KV blocks of all replicas together. A block takes a dozen bytes, and up to a kilobyte while the
  // prefix cache remembers it.
  static constexpr int64_t kMaxBlocks = int64_t{1} << 24;
};

class Fleet {
 public:
  // Throws Error{"InvalidOptionError"}. facts, options: of each replica.
  Fleet(const ModelFacts& facts, const EngineOptions& options, const StepPrices& prices,
        const FleetOptions& fleet);

  // Runs all requests to their ends. It may be called once. Throws Error: InvalidOptionError for traffic that
  // is not sound and for a replica that does not exist, PromptTooLongError for a request that a replica could
  // never end, and what the router throws.
  void run(const Traffic& traffic, const FleetRouter& router);

  const Outcomes& outcomes() const { return outcomes_; }
  const GapCounts& gaps() const { return gaps_; }
  const std::deque<Replica>& replicas() const { return replicas_; }

 private:
  using Time = Clock::time_point;
  // The end of a replica's step, or the begin of its first one.
  using Turn = std::pair<Time, int32_t>;

  void arrive(size_t request, const Traffic& traffic, const FleetRouter& router);
  void turn(Turn turn, const FleetRouter& router);
  void take(const Event& event, Time now, const FleetRouter& router);
  void end_request(size_t request, const FleetRouter& router);

  const CostModel costs_;
  const double gap_percentile_;
  std::deque<Replica> replicas_;
  std::vector<std::vector<Event>> events_;  // [replicas]: those of the step under way
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  std::span<const int64_t> arrivals_;  // [requests]: of the traffic, while run() is under way
  Outcomes outcomes_{0};
  std::vector<std::vector<int64_t>> gaps_of_;  // [requests]: of those that run
  std::vector<int64_t> last_token_;            // [requests]: its time
  GapCounts gaps_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_FLEET_H_
