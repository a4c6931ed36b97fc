// Memory that ends in the middle of a fork: either all completions are there or none.
#include <stdlib.h>

#include <new>

#include "tests/cpp/scheduler_simulation.h"

using namespace tensorwright;
using namespace tw_test;

namespace {
int64_t allocations_left = -1;  // before one fails; negative: none does
}

// Out of line, or the compiler sees malloc where it expects new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* memory = malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { free(memory); }

TW_TEST(a_fork_that_finds_no_memory_changes_nothing) {
  // Its forks go between it and who came later; 40 others make the queue of those that run a long one.
  Simulation s(400, 2, {60, 512, 0}, true);
  for (int64_t id = 1; id <= 20; ++id) s.scheduler.add(make(id, 3, 9));
  auto first = make(50, 5, 9, 0, 0, 8);
  Sequence* sequence = first.get();
  s.scheduler.add(std::move(first));
  for (int64_t id = 51; id <= 70; ++id) s.scheduler.add(make(id, 3, 9));
  s.scheduler.commit(s.checked_plan());
  const int32_t running = s.scheduler.running(), used = s.kv.group(0).used();
  std::vector<Sequence*> forks;
  int64_t failures = 0;
  while (forks.empty()) {
    allocations_left = failures;
    try {
      forks = s.scheduler.fork(*sequence);
      allocations_left = -1;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      ++failures;
      TW_CHECK_EQ(s.scheduler.running(), running);
      TW_CHECK_EQ(sequence->forks, 7);
      TW_CHECK_EQ(s.kv.group(0).used(), used);
      s.scheduler.check();
    }
  }
  TW_CHECK(failures > 7);
  TW_CHECK_EQ(forks.size(), 7u);
  TW_CHECK_EQ(s.scheduler.running(), running + 7);
  s.scheduler.check();
  const Sequence* before = nullptr;
  s.scheduler.for_each([&](const Sequence& each) {
    if (before) TW_CHECK(before->before(each));
    before = &each;
  });
}

TW_TEST_MAIN()
