// Says which of several tenants has had the least service for its weight.
//
// Each tenant has a counter: the tokens that were computed for it, divided by its weight (the virtual token
// counter of Sheng et al. 2024, "Fairness in Serving Large Language Models", section 4). Whoever starts the
// waiting requests of the tenant with the least counter first shares the engine by the weights. A tenant that
// had nothing to do begins level with the least served of those that have: it has saved up no claim. A tenant
// that leaves keeps what it has had beyond the others until they have caught up.
#ifndef TENSORWRIGHT_RUNTIME_CORE_FAIR_SHARE_H_
#define TENSORWRIGHT_RUNTIME_CORE_FAIR_SHARE_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace tensorwright {

class FairShare {
 public:
  // A sequence of the tenant has come. If it throws for lack of memory, nothing has changed.
  void join(int32_t tenant);
  // A sequence of a tenant that has one already has come. It needs no memory.
  void join_again(int32_t tenant) noexcept;
  // A sequence of the tenant has gone.
  void leave(int32_t tenant) noexcept;
  // Counts tokens that were computed for a tenant that has a sequence; negative ones are taken back.
  void charge(int32_t tenant, int32_t tokens, double weight) noexcept;

  // Returns the counter of a tenant that has a sequence.
  double served(int32_t tenant) const noexcept;
  // Returns whether there is nobody to share with.
  bool alone() const { return tenants_.size() < 2; }
  size_t known() const { return tenants_.size(); }

 private:
  struct Tenant {
    double served = 0;
    int64_t sequences = 0;
  };

  double least() const noexcept;

  std::unordered_map<int32_t, Tenant> tenants_;
  int64_t sequences_ = 0;  // of all tenants
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_FAIR_SHARE_H_
