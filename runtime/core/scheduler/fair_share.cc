#include "runtime/core/scheduler/fair_share.h"

#include <algorithm>
#include <limits>

namespace tensorwright {

// Returns the least counter of the tenants that have sequences; there must be one.
double FairShare::least() const noexcept {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.sequences > 0) least = std::min(least, tenant.served);
  }
  return least;
}

void FairShare::join(int32_t tenant) {
  if (sequences_ == 0) tenants_.clear();  // nobody waits, so nobody is owed anything
  if (const auto known = tenants_.find(tenant); known != tenants_.end() && known->second.sequences > 0) {
    join_again(tenant);
    return;
  }
  const double level = sequences_ > 0 ? least() : 0.0;
  Tenant& joined = tenants_[tenant];
  joined.served = std::max(joined.served, level);
  joined.sequences = 1;
  ++sequences_;
  // Whoever is gone and has had no more than the others would begin level with them as well if nobody knew
  // him. So the table has no more entries than there are tenants with requests, or with more than their
  // share.
  std::erase_if(tenants_, [&](const auto& entry) {
    return entry.second.sequences == 0 && entry.second.served <= level;
  });
}

void FairShare::join_again(int32_t tenant) noexcept {
  ++tenants_.find(tenant)->second.sequences;
  ++sequences_;
}

void FairShare::leave(int32_t tenant) noexcept {
  --tenants_.find(tenant)->second.sequences;
  --sequences_;
}

void FairShare::charge(int32_t tenant, int32_t tokens, double weight) noexcept {
  tenants_.find(tenant)->second.served += tokens / weight;
}

double FairShare::served(int32_t tenant) const noexcept { return tenants_.find(tenant)->second.served; }

}  // namespace tensorwright
