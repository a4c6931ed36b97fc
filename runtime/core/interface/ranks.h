// The interface to the other ranks of a parallel engine: processes that compute the same steps, each with a
// part of the weights. An operation that ranks do together is a number of messages that all of them exchange.
#ifndef TENSORWRIGHT_RUNTIME_CORE_INTERFACE_RANKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_INTERFACE_RANKS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/core/interface/fatal_error.h"

namespace tensorwright {

// What is thrown when the ranks can compute no further step together: one of them ended, does not answer, or
// does not agree.
class RankError : public FatalError {
 public:
  explicit RankError(const std::string& message) : FatalError("RankError", message) {}
};

struct Outgoing {
  int rank;
  const void* data;
  size_t bytes;
};

struct Incoming {
  int rank;
  void* data;
  size_t bytes;
};

// How long a rank waits for others before they count as lost, by what they have to do meanwhile.
enum class Patience {
  step,     // the time that ranks are given
  opening,  // kOpening times as long: they read their weights
  idle,     // without an end while they live: the next thing to do comes when it comes
};

class Ranks {
 public:
  static constexpr int kOpening = 10;

  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Sends and receives all these messages, and returns when that is done. Messages from one rank to another
  // arrive in the order in which they were sent; both sides must give the same tag and number of bytes.
  // Throws RankError, on every rank.
  virtual void exchange(uint32_t tag, std::span<const Outgoing> out, std::span<const Incoming> in,
                        Patience patience = Patience::step) = 0;
  // Makes all other ranks throw RankError with this text, now or at their next exchange.
  virtual void fail(const std::string& why) noexcept = 0;
  // Returns why the ranks can go on no more; empty while they can.
  virtual std::string failure() const = 0;
  // When the last exchange ended that only received, in nanoseconds of the steady clock: from then on this
  // rank had something to do.
  int64_t received_at() const { return received_at_; }

 protected:
  // Returns how long an exchange may last, where one of a step may last `timeout`.
  static std::chrono::duration<double> limit_of(std::chrono::duration<double> timeout, Patience patience) {
    if (patience == Patience::idle) return std::chrono::duration<double>::max();
    return patience == Patience::opening ? kOpening * timeout : timeout;
  }

  int64_t received_at_ = 0;
};

// The ranks as the operations of a plan see them: rank r is number r % tensor of stage r / tensor.
struct RankPlace {
  Ranks* ranks = nullptr;  // null: the engine is not parallel
  int tensor = 1;          // the ranks that share a stage
  int stages = 1;

  int number() const { return ranks->rank() % tensor; }
  int stage() const { return ranks->rank() / tensor; }
  int first() const { return stage() * tensor; }  // the first rank of the stage
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_INTERFACE_RANKS_H_
