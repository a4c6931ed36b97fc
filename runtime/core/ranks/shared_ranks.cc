#include "runtime/core/ranks/shared_ranks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/processor.h"
#include "runtime/core/base/timeline.h"

namespace tensorwright {
namespace {

// How long a rank sleeps at most before it looks whether the ranks have failed.
constexpr int kNapMilliseconds = 50;

struct Head {
  uint64_t bytes;
  uint32_t tag;
  uint32_t reserved;
};

// Copies into, or out of, a ring whose bytes wrap.
void copy_in(char* ring, size_t capacity, uint64_t at, const char* data, size_t bytes) {
  const size_t place = at & (capacity - 1), first = std::min(bytes, capacity - place);
  std::memcpy(ring + place, data, first);
  std::memcpy(ring, data + first, bytes - first);
}

void copy_out(const char* ring, size_t capacity, uint64_t at, char* data, size_t bytes) {
  const size_t place = at & (capacity - 1), first = std::min(bytes, capacity - place);
  std::memcpy(data, ring + place, first);
  std::memcpy(data + first, ring, bytes - first);
}

}  // namespace

// A message on its way: its head, then its bytes. `done` counts both.
struct SharedRanks::Sending {
  Outgoing message;
  Head head;
  size_t done = 0;
  size_t all() const { return sizeof(Head) + message.bytes; }
};

struct SharedRanks::Receiving {
  Incoming message;
  Head head{};
  size_t done = 0;
  size_t all() const { return sizeof(Head) + message.bytes; }
};

SharedRanks::SharedRanks(std::shared_ptr<SharedSegment> segment, int rank, double timeout_s, int spins)
    : segment_(std::move(segment)), rank_(rank), timeout_(timeout_s), spins_(spins) {}

// Returns whether anything was written.
bool SharedRanks::send(Sending& sending) const {
  SharedRing& ring = segment_->ring(rank_, sending.message.rank);
  char* bytes = segment_->bytes(ring);
  const size_t capacity = segment_->capacity();
  uint64_t written = ring.written.load(std::memory_order_relaxed);
  size_t room = capacity - static_cast<size_t>(written - ring.read.load(std::memory_order_acquire));
  const size_t before = sending.done;
  while (room > 0 && sending.done < sending.all()) {
    const bool in_head = sending.done < sizeof(Head);
    const size_t at = in_head ? sending.done : sending.done - sizeof(Head);
    const char* data = in_head ? reinterpret_cast<const char*>(&sending.head)
                               : static_cast<const char*>(sending.message.data);
    const size_t count = std::min(room, (in_head ? sizeof(Head) : sending.message.bytes) - at);
    copy_in(bytes, capacity, written, data + at, count);
    written += count;
    room -= count;
    sending.done += count;
  }
  if (sending.done == before) return false;
  ring.written.store(written, std::memory_order_release);
  segment_->ring_bell(sending.message.rank);
  return true;
}

bool SharedRanks::receive(Receiving& receiving, uint32_t tag) {
  SharedRing& ring = segment_->ring(receiving.message.rank, rank_);
  const char* bytes = segment_->bytes(ring);
  const size_t capacity = segment_->capacity();
  uint64_t read = ring.read.load(std::memory_order_relaxed);
  size_t there = static_cast<size_t>(ring.written.load(std::memory_order_acquire) - read);
  const size_t before = receiving.done;
  while (there > 0 && receiving.done < receiving.all()) {
    const bool in_head = receiving.done < sizeof(Head);
    const size_t at = in_head ? receiving.done : receiving.done - sizeof(Head);
    char* data =
        in_head ? reinterpret_cast<char*>(&receiving.head) : static_cast<char*>(receiving.message.data);
    const size_t count = std::min(there, (in_head ? sizeof(Head) : receiving.message.bytes) - at);
    copy_out(bytes, capacity, read, data + at, count);
    read += count;
    there -= count;
    receiving.done += count;
    if (receiving.done != sizeof(Head)) continue;
    if (receiving.head.tag != tag || receiving.head.bytes != receiving.message.bytes) {
      const std::string why =
          concat("[ranks] rank ", rank_, " expects message ", tag, " of ", receiving.message.bytes,
                 " bytes from rank ", receiving.message.rank, ", which sends message ", receiving.head.tag,
                 " of ", receiving.head.bytes, ": they do not compute the same step");
      segment_->fail(why);
      throw RankError(why);
    }
  }
  if (receiving.done == before) return false;
  ring.read.store(read, std::memory_order_release);
  segment_->ring_bell(receiving.message.rank);
  return true;
}

void SharedRanks::require_whole() const {
  if (std::string why = segment_->failure(); !why.empty()) throw RankError(why);
}

void SharedRanks::exchange(uint32_t tag, std::span<const Outgoing> out, std::span<const Incoming> in,
                           Patience patience) {
  require_whole();
  std::vector<Sending> sending;
  std::vector<Receiving> receiving;
  for (const Outgoing& message : out) sending.push_back({message, {message.bytes, tag, 0}});
  for (const Incoming& message : in) receiving.push_back({message});
  const std::chrono::duration<double> limit = limit_of(timeout_, patience);
  const auto begin = std::chrono::steady_clock::now();
  int spins = 0;
  while (true) {
    const uint32_t seen = segment_->bell(rank_).count.load();
    bool moved = false;
    for (Sending& message : sending) moved |= message.done < message.all() && send(message);
    for (Receiving& message : receiving) moved |= message.done < message.all() && receive(message, tag);
    const auto left = [](const auto& message) { return message.done < message.all(); };
    if (std::ranges::none_of(sending, left) && std::ranges::none_of(receiving, left)) {
      if (out.empty()) received_at_ = Timeline::now();
      return;
    }
    if (moved) {
      spins = 0;
      continue;
    }
    if (spins++ < spins_) {
      pause_briefly();
      continue;
    }
    require_whole();
    if (std::chrono::steady_clock::now() - begin > limit) {
      const auto late = std::ranges::find_if(receiving, left);
      const int other =
          late != receiving.end() ? late->message.rank : std::ranges::find_if(sending, left)->message.rank;
      const std::string why =
          concat("[ranks] rank ", other, " did not answer rank ", rank_, " in ", limit.count(), " seconds");
      segment_->fail(why);
      throw RankError(why);
    }
    segment_->wait_for_bell(rank_, seen, kNapMilliseconds);
  }
}

}  // namespace tensorwright
