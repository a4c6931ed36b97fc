// The requests of a simulation, and what became of each.
#ifndef TENSORWRIGHT_RUNTIME_CORE_TRAFFIC_H_
#define TENSORWRIGHT_RUNTIME_CORE_TRAFFIC_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// The requests, in the order of their arrival. Request i says outputs[i] tokens behind a prompt of
// prompts[i] tokens. The first prefix_tokens[i] of these are the same for all requests with the same
// prefixes[i]. Requests with the same conversations[i] have the same tokens at the same places of the rest,
// as far as both go, as turns of one conversation do; no other request has them.
struct Traffic {
  std::span<const int64_t> arrivals;       // [requests]: nanoseconds, ascending, from 0 on
  std::span<const int32_t> prompts;        // [requests]: tokens, at least 1
  std::span<const int32_t> outputs;        // [requests]: tokens, at least 1
  std::span<const int32_t> prefixes;       // [requests]: the number of the common beginning
  std::span<const int32_t> prefix_tokens;  // [requests]: tokens of it, 0: none
  std::span<const int32_t> conversations;  // [requests]: the number of the conversation

  // Who sends what: [requests], the number of the tenant; empty: all are of one.
  std::span<const int32_t> tenants = {};
  // By tenant, as in Sampling; empty: 1, 0 and none (a negative number).
  std::span<const double> weights = {};
  std::span<const int32_t> priorities = {};
  std::span<const double> deadlines = {};  // seconds from the arrival

  static constexpr size_t kMaxRequests = size_t{1} << 22;

  size_t size() const { return arrivals.size(); }
  // Throws Error{"InvalidOptionError"} unless all that is said above holds.
  void check() const;
  // Makes a request whose tokens and lengths are those of request `index`, which is its id.
  Request make(size_t index) const;
};

// What became of the requests. Times are nanoseconds of the simulation's clock; -1: never.
struct Outcomes {
  explicit Outcomes(size_t requests);

  std::vector<int32_t> replicas;   // [requests]: where it was sent, -1 if it was refused there
  std::vector<int64_t> started;    // [requests]: the begin of its first step
  std::vector<int64_t> first;      // [requests]: its first token
  std::vector<int64_t> ended;      // [requests]: its last token
  std::vector<int32_t> cached;     // [requests]: tokens of its prompt that the prefix cache had
  std::vector<int32_t> generated;  // [requests]: tokens
  std::vector<uint8_t> late;       // [requests]: 1 if it ended because it could not meet its deadline
  // [requests]: the percentile of the seconds between its tokens that was asked for; 0 for one token.
  std::vector<float> gaps;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_TRAFFIC_H_
