#include "runtime/core/engine/prefix_fetches.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "runtime/core/base/start_thread.h"
#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

namespace {

// The bytes that one visit of the loop copies, unless one block has more.
constexpr int64_t kChunkBytes = int64_t{4} << 20;
// Reads of fewer bytes say little of how fast a disk is.
constexpr int64_t kMeasuredBytes = int64_t{1} << 20;
constexpr double kNewShare = 0.25;  // of a measurement in the mean
// After each request that was passed over, the disk is thought to be a little faster, so that it is tried
// again.
constexpr double kDoubt = 1.05;
// How often a prefix is cut where a block was damaged, and tried again.
constexpr int kTries = 3;
// The time between two tries to tell the loop that a request need not wait any more.
constexpr std::chrono::milliseconds kRetry(10);
// Steps of fewer tokens say little of how fast prompts are computed.
constexpr int32_t kLongStep = 128;

void learn(double* mean, double value) { *mean = *mean > 0 ? *mean + kNewShare * (value - *mean) : value; }

}  // namespace

void PrefixFetches::start(Visit visit) {
  visit_ = std::move(visit);
  ended_ = false;
  thread_ = start_thread("reading back prefixes", [this] { run(); });
}

void PrefixFetches::stop() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Returns the longest prefix, longer than what the cache remembers, whose blocks the cache and the tiers have
// together; 0 blocks if there is none. keys: gets those of all blocks.
PrefixFetches::Extent PrefixFetches::extent(std::span<const int32_t> tokens, std::string_view salt,
                                            std::vector<ArchiveKey>* keys) const {
  Extent best;
  if (tokens.empty()) return best;
  const auto size = static_cast<size_t>(kv_.block_size());
  const auto remembered = static_cast<int32_t>(kv_.match(tokens, salt).path.size());
  const std::vector<PrefixTree::Node*> path = kv_.remembered_path(tokens, salt);
  const auto groups = static_cast<size_t>(kv_.groups());
  std::vector<int32_t> run(groups, 0);  // blocks in a row that are there, up to the last one looked at
  ArchiveKey key = tiers_.hash().root(salt);
  int64_t bytes = 0;
  // At least one token stays to compute.
  for (size_t block = 0; (block + 1) * size < tokens.size(); ++block) {
    key = tiers_.hash().child(key, tokens.subspan(block * size, size));
    keys->push_back(key);
    bool whole = true;
    for (size_t group = 0; group < groups; ++group) {
      const bool here = block < path.size() && path[block]->blocks[group] != PrefixTree::kHole;
      const bool there = !here && tiers_.has({key, static_cast<int32_t>(group)});
      run[group] = here || there ? run[group] + 1 : 0;
      if (there) bytes += size_of({static_cast<int32_t>(group), static_cast<int32_t>(block)});
      // A group without a window needs all blocks, and one with sink tokens always theirs.
      const auto g = static_cast<int32_t>(group), blocks = static_cast<int32_t>(block) + 1;
      const bool always = kv_.shape(g).window == 0 || blocks <= kv_.sink_blocks(g);
      if (run[group] == 0 && always) return best;
      whole &= run[group] == blocks || !kv_.is_needed_behind(g, blocks, blocks - 1 - run[group]);
    }
    if (whole && static_cast<int32_t>(block) >= remembered) best = {static_cast<int32_t>(block) + 1, bytes};
  }
  return best;
}

// Returns whether reading is expected to take less time than computing. The caller must hold mutex_.
bool PrefixFetches::is_worth(int64_t bytes, int32_t tokens, bool preempted) {
  if (bytes_per_second_ == 0 || tokens_per_second_ == 0) return true;
  const double wait = static_cast<double>(bytes_ahead_ + bytes) / bytes_per_second_;
  if ((!preempted && wait < kShortWait) || wait < tokens / tokens_per_second_) return true;
  bytes_per_second_ *= kDoubt;
  return false;
}

bool PrefixFetches::ask(const Sequence& sequence) {
  {
    std::lock_guard lock(mutex_);
    const bool stalls = reads_since_ != Clock::time_point::max() && stalled_at(reads_since_, Clock::now());
    if (ended_ || stalls || under_way_ + waiting_.size() >= kMaxFetches) return false;
  }
  try {
    const std::string& salt = sequence.sampling->cache_salt;
    const std::span<const int32_t> tokens = sequence.reusable();
    std::vector<ArchiveKey> keys;
    const Extent found = extent(tokens, salt, &keys);
    if (found.blocks == 0) return false;
    keys.resize(static_cast<size_t>(found.blocks));
    const int32_t count = found.blocks * kv_.block_size();
    std::lock_guard lock(mutex_);
    const bool preempted = sequence.cached_tokens >= 0;
    const int32_t remembered = static_cast<int32_t>(kv_.match(tokens, salt).path.size()) * kv_.block_size();
    if (!is_worth(found.bytes, count - remembered, preempted)) {
      ++stats_.passed_over;
      stats_.resumed_passed_over += preempted;
      return false;
    }
    waiting_.push_back({sequence.id,
                        sequence.completion,
                        {tokens.begin(), tokens.begin() + count},
                        salt,
                        std::move(keys),
                        found.bytes,
                        Clock::now()});
    bytes_ahead_ += found.bytes;
    ++stats_.fetches;
    stats_.resumed += preempted;
    wake_.notify_all();
    return true;
  } catch (const std::bad_alloc&) {  // the prefix is computed
    return false;
  }
}

bool PrefixFetches::stalled_at(Clock::time_point since, Clock::time_point now) {
  return now - since > std::chrono::duration<double>(kStallSeconds);
}

bool PrefixFetches::stalled(Clock::time_point now) const {
  std::lock_guard lock(mutex_);
  return reads_since_ != Clock::time_point::max() && stalled_at(reads_since_, now);
}

Clock::time_point PrefixFetches::stalls_at() const {
  std::lock_guard lock(mutex_);
  if (reads_since_ == Clock::time_point::max()) {
    // A read that begins later stalls later.
    return under_way_ + waiting_.size() > 0 ? Clock::now() + std::chrono::seconds(1) : reads_since_;
  }
  return reads_since_ + std::chrono::milliseconds(static_cast<int64_t>(1000 * kStallSeconds) + 1);
}

void PrefixFetches::observe(int32_t tokens, double seconds) {
  if (tokens < kLongStep || seconds <= 0) return;
  std::lock_guard lock(mutex_);
  learn(&tokens_per_second_, tokens / seconds);
}

FetchStats PrefixFetches::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

// What the thread does.
void PrefixFetches::run() {
  while (true) {
    Fetch next;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (ended_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      ++under_way_;
    }
    fetch(next);
    std::lock_guard lock(mutex_);
    --under_way_;
    bytes_ahead_ -= next.bytes;
  }
}

void PrefixFetches::fetch(Fetch& fetch) {
  int32_t brought = 0;
  try {
    int32_t blocks = static_cast<int32_t>(fetch.keys.size());
    for (int tries = 0; tries < kTries && blocks > 0 && brought == 0; ++tries) {
      blocks = bring(fetch, blocks, &brought);
    }
  } catch (const std::exception&) {  // requests needed the room, the engine ends, or there is no memory
  }
  {
    std::lock_guard lock(mutex_);
    if (brought == 0) ++stats_.failed;
    stats_.tokens += int64_t{brought} * kv_.block_size();
    stats_.seconds += seconds_since(fetch.asked);
  }
  tell(fetch);
}

// Ends the wait of the request. It must not give up while the engine runs.
void PrefixFetches::tell(const Fetch& fetch) {
  while (true) {
    try {
      return visit_([&](EngineCore& core) { core.prefix_came(fetch.request, fetch.completion); }, 0);
    } catch (const std::exception&) {  // the engine has stopped, or its loop is busy
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kRetry, [&] { return ended_; })) return;
    }
  }
}

// Brings the first `blocks` blocks, fewer if requests need the room. Returns -1, or the number of a block
// that no tier has whole any more. brought: is set to the blocks that the cache remembers now.
int32_t PrefixFetches::bring(const Fetch& fetch, int32_t blocks, int32_t* brought) {
  const auto tokens =
      std::span(fetch.tokens).first(static_cast<size_t>(blocks) * static_cast<size_t>(kv_.block_size()));
  PrefixNeeds needs;
  visit_([&](EngineCore& core) { needs = core.transfer().begin(tokens, fetch.salt, true); }, 0);
  const auto leave = [&](EngineCore& core) { core.transfer().drop(needs.import); };
  try {
    std::vector<char> bytes;
    const Clock::time_point begin = Clock::now();
    int64_t moved = 0;
    bool more = true;
    for (size_t done = 0; more && done < needs.pieces.size();) {
      size_t end = done;
      for (int64_t sum = 0; end < needs.pieces.size(); ++end) {
        sum += size_of(needs.pieces[end]);
        if (end > done && sum > kChunkBytes) break;
      }
      const auto pieces = std::span(needs.pieces).subspan(done, end - done);
      const int32_t lost = read_chunk(fetch, pieces, &bytes);
      if (lost >= 0) {
        visit_(leave, 0);
        return lost;
      }
      visit_(
          [&](EngineCore& core) {
            if (!core.waits_for_prefix(fetch.request, fetch.completion))
              throw Error("TransferError", "[engine] the request that wanted the prefix has ended");
            more = core.transfer().write(needs.import, pieces, bytes);
          },
          bytes.size());
      moved += static_cast<int64_t>(bytes.size());
      done = end;
    }
    visit_([&](EngineCore& core) { *brought = core.transfer().finish(needs.import, {}); }, 0);
    learn_rate(moved, seconds_since(begin));
    return -1;
  } catch (...) {
    try {
      visit_(leave, 0);
    } catch (const std::exception&) {  // the engine ends, and its imports with it
    }
    throw;
  }
}

// Reads the pieces, one behind the other. Returns -1, or the number of a block that no tier has whole any
// more.
int32_t PrefixFetches::read_chunk(const Fetch& fetch, std::span<const PrefixPiece> pieces,
                                  std::vector<char>* bytes) {
  int64_t sum = 0;
  for (const PrefixPiece& piece : pieces) sum += size_of(piece);
  bytes->resize(static_cast<size_t>(sum));
  char* to = bytes->data();
  int32_t lost = -1;
  for (const PrefixPiece& piece : pieces) {
    {
      std::lock_guard lock(mutex_);
      reads_since_ = Clock::now();
    }
    const auto size = static_cast<size_t>(size_of(piece));
    const bool came = tiers_.read({fetch.keys[static_cast<size_t>(piece.index)], piece.group}, {to, size});
    if (!came) lost = piece.index;
    if (!came) break;
    to += size;
  }
  std::lock_guard lock(mutex_);
  reads_since_ = Clock::time_point::max();
  return lost;
}

void PrefixFetches::learn_rate(int64_t bytes, double seconds) {
  std::lock_guard lock(mutex_);
  learned_bytes_ += bytes;
  learned_seconds_ += seconds;
  if (learned_bytes_ < kMeasuredBytes || learned_seconds_ <= 0) return;
  learn(&bytes_per_second_, static_cast<double>(learned_bytes_) / learned_seconds_);
  learned_bytes_ = 0, learned_seconds_ = 0;
}

}  // namespace tensorwright
