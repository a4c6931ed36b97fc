// Page faults are taken ahead: in the order asked for, up to the limit, and nothing in memory changes.
#include "runtime/core/base/populate.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "runtime/core/base/arena.h"
#include "runtime/core/base/page.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
const size_t kPage = page_bytes();

// Bytes of the arena's first `bytes` that are in memory.
size_t resident(const Arena& arena, size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  TW_CHECK_EQ(mincore(arena.data(), bytes, pages.data()), 0);
  return kPage *
         static_cast<size_t>(std::ranges::count_if(pages, [](unsigned char page) { return page & 1; }));
}

}  // namespace

TW_TEST(what_was_asked_for_is_in_memory) {
  ThreadTeam team(2);
  const Arena first(6 * kMiB, "a test"), second(6 * kMiB, "a test"), third(kPage, "a test");
  TW_CHECK_EQ(resident(first, 6 * kMiB), size_t{0});
  first.data()[5] = 'x';
  Populator populator;
  populator.start({{first.data(), 6 * kMiB}, {nullptr, 0}, {second.data(), 6 * kMiB}, {third.data(), kPage}},
                  10 * kMiB, team);
  populator.wait();
  TW_CHECK_EQ(resident(first, 6 * kMiB), 6 * kMiB);
  TW_CHECK_EQ(resident(second, 4 * kMiB), 4 * kMiB);
  TW_CHECK_EQ(resident(third, kPage), size_t{0});  // beyond the limit
  TW_CHECK_EQ(first.data()[5], 'x');
  TW_CHECK_EQ(first.data()[6], '\0');
}

TW_TEST(more_than_fits_at_once_goes_on_behind) {
  ThreadTeam team(1);
  const size_t bytes = Populator::kAtOnce + 8 * kMiB;
  const Arena arena(bytes, "a test");
  Populator populator;
  populator.start({{arena.data(), bytes}}, bytes, team);
  TW_CHECK(resident(arena, Populator::kAtOnce) == Populator::kAtOnce);
  populator.wait();
  TW_CHECK_EQ(resident(arena, bytes), bytes);
}

TW_TEST(stops_when_it_goes) {
  ThreadTeam team(1);
  const size_t bytes = Populator::kAtOnce + 64 * kMiB;
  const Arena arena(bytes, "a test");
  Populator().start({{arena.data(), bytes}}, bytes, team);
}

TW_TEST(no_limit_takes_nothing) {
  ThreadTeam team(1);
  const Arena arena(2 * kMiB, "a test");
  Populator populator;
  populator.start({{arena.data(), 2 * kMiB}}, 0, team);
  TW_CHECK_EQ(resident(arena, 2 * kMiB), size_t{0});
}

TW_TEST_MAIN()
