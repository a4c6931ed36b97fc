#include "runtime/core/base/populate.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "runtime/core/base/page.h"
#include "runtime/core/base/start_thread.h"

namespace tensorwright {
namespace {

#if defined(__linux__) && !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

constexpr size_t kPart = size_t{2} << 20;  // a huge page

// Returns whether the kernel (5.14 or later) populated the piece. Where it did not, also for lack of memory,
// nothing is lost: the pages, and any error, come when the memory is used.
bool populate(const MemoryPiece& piece) {
#ifdef MADV_POPULATE_WRITE
  const auto begin = reinterpret_cast<uintptr_t>(piece.data);
  const uintptr_t from = begin / page_bytes() * page_bytes();
  return madvise(reinterpret_cast<void*>(from), piece.bytes + (begin - from), MADV_POPULATE_WRITE) == 0;
#else
  return piece.bytes == 0;  // other systems do not know this
#endif
}

// Populates a piece under older kernels. No other thread may write to the piece meanwhile.
void touch(const MemoryPiece& piece) {
  for (size_t at = 0; at < piece.bytes; at += page_bytes()) {
    volatile char* byte = piece.data + at;
    *byte = *byte;
  }
}

// Splits the pieces into parts of at most a huge page, up to `limit` bytes in all.
std::vector<MemoryPiece> parts_of(const std::vector<MemoryPiece>& pieces, size_t limit) {
  std::vector<MemoryPiece> parts;
  for (const MemoryPiece& piece : pieces) {
    for (size_t at = 0; at < piece.bytes; at += kPart) {
      const size_t bytes = std::min({kPart, piece.bytes - at, limit});
      if (bytes == 0) return parts;
      parts.push_back({piece.data + at, bytes});
      limit -= bytes;
    }
  }
  return parts;
}

}  // namespace

void Populator::start(const std::vector<MemoryPiece>& pieces, size_t limit, ThreadTeam& team) {
  std::vector<MemoryPiece> parts = parts_of(pieces, limit);
  size_t now = 0, bytes = 0;
  while (now < parts.size() && bytes < kAtOnce) bytes += parts[now++].bytes;
  std::atomic<bool> kernel_does{true};
  const auto populate_now = [&](size_t i) {
    if (populate(parts[i])) return;
    kernel_does = false;
    touch(parts[i]);
  };
  const Placement& placement = team.placement();
  if (placement.nodes == 1) {
    team.run(static_cast<int>(now), [&](int task, int) { populate_now(static_cast<size_t>(task)); });
  } else {
    const auto threads = static_cast<size_t>(team.threads());
    team.run_on_each([&](int thread) {
      for (auto i = static_cast<size_t>(thread); i < now; i += threads) populate_now(i);
    });
  }
  if (!kernel_does || now == parts.size()) return;
  std::vector<std::vector<int>> nodes;
  for (int node = 0; node < placement.nodes; ++node) nodes.push_back(placement.on_node(node));
  rest_ = start_thread("the memory of first requests",
                       [this, parts = std::move(parts), nodes = std::move(nodes), now] {
                         for (size_t i = now; i < parts.size() && !stop_; ++i) {
                           keep_to_processors(nodes[i % nodes.size()]);  // an empty list changes nothing
                           const auto begin = std::chrono::steady_clock::now();
                           if (!populate(parts[i])) return;
                           // The thread takes at most a quarter of a processor. The rest is for the requests
                           // that arrived meanwhile.
                           std::this_thread::sleep_for(3 * (std::chrono::steady_clock::now() - begin));
                         }
                       });
}

void Populator::wait() {
  if (rest_.joinable()) rest_.join();
}

Populator::~Populator() {
  stop_ = true;
  wait();
}

}  // namespace tensorwright
