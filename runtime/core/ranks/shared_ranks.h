// The ranks of one machine, which talk through shared memory.
#ifndef TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_RANKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_RANKS_H_

#include <chrono>
#include <memory>
#include <string>

#include "runtime/core/interface/ranks.h"
#include "runtime/core/ranks/shared_segment.h"

namespace tensorwright {

class SharedRanks : public Ranks {
 public:
  // timeout_s: how long an exchange waits for another rank before it fails. spins: how often a waiting rank
  // looks before it sleeps; 0 where there are fewer processors than ranks.
  SharedRanks(std::shared_ptr<SharedSegment> segment, int rank, double timeout_s, int spins);

  int rank() const override { return rank_; }
  int size() const override { return segment_->ranks(); }
  void exchange(uint32_t tag, std::span<const Outgoing> out, std::span<const Incoming> in,
                Patience patience = Patience::step) override;
  void fail(const std::string& why) noexcept override { segment_->fail(why); }
  std::string failure() const override { return segment_->failure(); }

 private:
  struct Sending;
  struct Receiving;

  bool send(Sending& message) const;
  bool receive(Receiving& message, uint32_t tag);
  void require_whole() const;

  const std::shared_ptr<SharedSegment> segment_;
  const int rank_;
  const std::chrono::duration<double> timeout_;
  const int spins_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_RANKS_SHARED_RANKS_H_
