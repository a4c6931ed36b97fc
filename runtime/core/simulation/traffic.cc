#include "runtime/core/simulation/traffic.h"

#include <string>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Tokens have 30 bits. They are drawn by a multiplicative hash of the text that they are of and of the place
// in it, so that no two texts begin alike.
int32_t token_of(uint64_t text, uint64_t place) {
  return static_cast<int32_t>((text + place * 0xD1342543DE82EF95u) >> 34);
}

// The finalizer of SplitMix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators").
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Texts of conversations have even numbers, common beginnings have odd ones.
uint64_t text_of_conversation(int32_t conversation) {
  return mix(2 * static_cast<uint64_t>(static_cast<uint32_t>(conversation)));
}
uint64_t text_of_prefix(int32_t prefix) {
  return mix(2 * static_cast<uint64_t>(static_cast<uint32_t>(prefix)) + 1);
}

void require(bool holds, size_t index, const char* must) {
  if (holds) return;
  throw Error("InvalidOptionError", concat("[traffic] request ", index, " must have ", must));
}

void require_tenants(const Traffic& traffic) {
  const size_t known = traffic.weights.size();
  if (!traffic.tenants.empty() && traffic.tenants.size() != traffic.size())
    throw Error("InvalidOptionError", concat("[traffic] the column of tenants must have ", traffic.size(),
                                             " entries, has ", traffic.tenants.size()));
  if (traffic.priorities.size() != known || traffic.deadlines.size() != known)
    throw Error("InvalidOptionError",
                concat("[traffic] each of the ", known, " tenants must have a priority and a deadline, got ",
                       traffic.priorities.size(), " and ", traffic.deadlines.size()));
  for (size_t i = 0; i < traffic.tenants.size(); ++i) {
    const int32_t tenant = traffic.tenants[i];
    require(tenant >= 0 && (known == 0 || static_cast<size_t>(tenant) < known), i,
            "a tenant that is in the tables of tenants");
  }
}

}  // namespace

void Traffic::check() const {
  const size_t count = size();
  if (count == 0 || count > kMaxRequests)
    throw Error("InvalidOptionError",
                concat("[traffic] there must be 1 to ", kMaxRequests, " requests, got ", count));
  for (const size_t length :
       {prompts.size(), outputs.size(), prefixes.size(), prefix_tokens.size(), conversations.size()}) {
    if (length != count)
      throw Error("InvalidOptionError",
                  concat("[traffic] all columns must have ", count, " entries, one has ", length));
  }
  require_tenants(*this);
  // A hundred years: sums of times stay far from overflowing.
  constexpr int64_t kLatest = int64_t{100} * 365 * 86400 * 1'000'000'000;
  for (size_t i = 0; i < count; ++i) {
    const int64_t earliest = i == 0 ? 0 : arrivals[i - 1];
    require(arrivals[i] >= earliest && arrivals[i] <= kLatest, i, "a time that is not before the last one's");
    require(prompts[i] >= 1, i, "a prompt of at least one token");
    require(outputs[i] >= 1, i, "an output of at least one token");
    require(prefix_tokens[i] >= 0 && prefix_tokens[i] < prompts[i], i,
            "a common beginning that is shorter than its prompt");
    require(prefixes[i] >= 0, i, "a number of its common beginning that is not negative");
    require(conversations[i] >= 0, i, "a number of its conversation that is not negative");
  }
}

Request Traffic::make(size_t index) const {
  Request request;
  request.id = static_cast<int64_t>(index);
  const auto common = static_cast<size_t>(prefix_tokens[index]);
  request.prompt.resize(static_cast<size_t>(prompts[index]));
  const uint64_t prefix = text_of_prefix(prefixes[index]), own = text_of_conversation(conversations[index]);
  for (size_t i = 0; i < common; ++i) request.prompt[i] = token_of(prefix, i);
  for (size_t i = common; i < request.prompt.size(); ++i) request.prompt[i] = token_of(own, i);
  request.sampling.max_tokens = outputs[index];
  request.sampling.temperature = 0;
  request.sampling.seed = 0;
  request.sampling.ignore_eos = true;
  if (tenants.empty()) return request;
  request.sampling.tenant = tenants[index];
  if (weights.empty()) return request;
  const auto tenant = static_cast<size_t>(tenants[index]);
  request.sampling.tenant_weight = weights[tenant];
  request.sampling.priority = priorities[tenant];
  request.sampling.deadline_s = deadlines[tenant];
  return request;
}

Outcomes::Outcomes(size_t requests)
    : replicas(requests, -1),
      started(requests, -1),
      first(requests, -1),
      ended(requests, -1),
      cached(requests, 0),
      generated(requests, 0),
      late(requests, 0),
      gaps(requests, 0.f) {}

}  // namespace tensorwright
