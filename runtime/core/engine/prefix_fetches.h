// Brings prefixes back from the tiers (tiers/block_tiers.h) into the cache, for requests that are about to
// start.
//
// A request asks once per start, when it has the blocks to start. If the tiers have blocks behind what the
// cache remembers, a thread of its own reads them, and gives them to the cache between two steps, as a prefix
// that another engine has sent (prefix_transfer.h). The request waits meanwhile, and others pass it. It then
// starts with what the cache remembers: all of the prefix, or less, if a block was damaged or requests needed
// the room. The bits are the same either way.
//
// So a request that was preempted swaps its blocks, those of generated tokens too, in place of computing
// them: where that takes less time, by the measured rates of both. A short wait is not weighed for a request
// that starts, whose blocks others may want; for one that was preempted it is, as nobody else wants them.
//
// How long a request waits is bounded: at most kMaxFetches wait; nobody asks when reading, behind those that
// wait already, is expected to take longer than computing; and when the disk has not answered for
// kStallSeconds, all stop waiting, and nobody asks until it answers.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PREFIX_FETCHES_H_
#define TENSORWRIGHT_RUNTIME_CORE_PREFIX_FETCHES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/engine/prefix_transfer.h"
#include "runtime/core/scheduler/sequence.h"
#include "runtime/core/tiers/block_tiers.h"

namespace tensorwright {

class EngineCore;

struct FetchStats {
  int64_t fetches = 0;      // that were begun
  int64_t failed = 0;       // of those, the ones that brought nothing
  int64_t passed_over = 0;  // requests for which computing was expected to take less time
  // Of fetches and passed_over, those of requests that were preempted.
  int64_t resumed = 0, resumed_passed_over = 0;
  int64_t tokens = 0;  // of the blocks that came
  double seconds = 0;  // from a request's asking to its going on, added up
};

class PrefixFetches {
 public:
  static constexpr size_t kMaxFetches = PrefixTransfer::kMaxImports / 2;
  static constexpr double kStallSeconds = 5;
  // A wait of so few seconds is not weighed.
  static constexpr double kShortWait = 0.05;
  // Runs work on the engine's loop between two steps; see Engine::between_steps.
  using Visit = std::function<void(const std::function<void(EngineCore&)>& work, size_t bytes)>;

  // block_bytes: by cache group.
  PrefixFetches(KvBlocks& kv, BlockTiers& tiers, std::vector<int64_t> block_bytes)
      : kv_(kv), tiers_(tiers), block_bytes_(std::move(block_bytes)) {}
  ~PrefixFetches() { stop(); }
  PrefixFetches(const PrefixFetches&) = delete;
  PrefixFetches& operator=(const PrefixFetches&) = delete;

  // Starts the thread. Until then, and after stop(), nobody waits.
  void start(Visit visit);
  void stop();

  // The engine's loop calls these.
  // Returns whether the sequence must wait. EngineCore::prefix_came() tells when it need not any more.
  bool ask(const Sequence& sequence);
  // Returns whether the disk has not answered for so long that nobody may wait for it.
  bool stalled(Clock::time_point now) const;
  // The first time at which stalled() may be true.
  Clock::time_point stalls_at() const;
  // Learns how long a step of `tokens` tokens of prompts took.
  void observe(int32_t tokens, double seconds);
  // Learns how long it took to bring blocks from the tiers into the cache. Any thread may call it.
  void learn_rate(int64_t bytes, double seconds);
  FetchStats stats() const;

 private:
  struct Fetch {
    int64_t request;
    int32_t completion;
    std::vector<int32_t> tokens;  // [blocks * block_size]
    std::string salt;
    std::vector<ArchiveKey> keys;  // [blocks]
    int64_t bytes;
    Clock::time_point asked;
  };
  struct Extent {
    int32_t blocks = 0;
    int64_t bytes = 0;
  };
  Extent extent(std::span<const int32_t> tokens, std::string_view salt, std::vector<ArchiveKey>* keys) const;
  bool is_worth(int64_t bytes, int32_t tokens, bool preempted);
  int64_t size_of(const PrefixPiece& piece) const {
    const auto group = static_cast<size_t>(piece.group);
    return group < block_bytes_.size() ? block_bytes_[group] : 0;
  }
  static bool stalled_at(Clock::time_point since, Clock::time_point now);
  void run();
  void fetch(Fetch& fetch);
  void tell(const Fetch& fetch);
  int32_t bring(const Fetch& fetch, int32_t blocks, int32_t* brought);
  int32_t read_chunk(const Fetch& fetch, std::span<const PrefixPiece> pieces, std::vector<char>* bytes);

  KvBlocks& kv_;
  BlockTiers& tiers_;
  const std::vector<int64_t> block_bytes_;
  Visit visit_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Fetch> waiting_;
  int64_t bytes_ahead_ = 0;  // of the fetches that wait or are under way
  size_t under_way_ = 0;
  bool ended_ = true;
  Clock::time_point reads_since_ = Clock::time_point::max();  // when a read began that has not ended
  // From the begin of a read until its blocks are in the cache, and of steps that compute prompts alone; 0:
  // not known.
  double bytes_per_second_ = 0, tokens_per_second_ = 0;
  int64_t learned_bytes_ = 0;  // that were brought, but are too few to say much
  double learned_seconds_ = 0;
  FetchStats stats_;
  std::thread thread_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PREFIX_FETCHES_H_
