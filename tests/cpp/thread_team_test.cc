// The thread team: every task once, in any crowd; denormals flushed; exceptions come back.
#include "runtime/core/base/thread_team.h"

#include <xmmintrin.h>

#include <chrono>
#include <numeric>
#include <stdexcept>

#include "runtime/core/base/error.h"
#include "tests/cpp/check.h"

using tensorwright::Error;
using tensorwright::ThreadTeam;

namespace {

constexpr int kTeamSizes[] = {1, 2, 3, 4, 7, 16, 128};

// A result that depends on denormals: zero exactly when they are flushed.
float half_of_smallest() {
  volatile float smallest = 1.17549435e-38f, half = 0.5f;
  return smallest * half;
}

}  // namespace

TW_TEST(every_task_runs_once) {
  for (int threads : kTeamSizes) {
    ThreadTeam team(threads);
    TW_CHECK_EQ(team.threads(), threads);
    for (int tasks : {0, 1, 2, 3, 5, 8, 64, 129, 1000}) {
      std::vector<int> runs(static_cast<size_t>(tasks), 0);  // plain ints: the sanitizer sees who wrote them
      std::atomic<bool> bad_thread{false};
      team.run(tasks, [&](int task, int thread) {
        ++runs[static_cast<size_t>(task)];
        if (thread < 0 || thread >= threads) bad_thread = true;
      });
      TW_CHECK_EQ(std::accumulate(runs.begin(), runs.end(), 0), tasks);
      for (int count : runs) TW_CHECK_EQ(count, 1);
      TW_CHECK(!bad_thread);
    }
  }
}

// Regions in quick succession, each reading what the last one wrote from other threads.
TW_TEST(regions_see_what_earlier_regions_wrote) {
  for (int threads : {2, 3, 8}) {
    ThreadTeam team(threads);
    constexpr int kTasks = 12;
    std::vector<int64_t> values(kTasks, 1), next(kTasks);
    for (int region = 0; region < 3000; ++region) {
      team.run(kTasks, [&](int task, int) {
        next[static_cast<size_t>(task)] = values[static_cast<size_t>((task + 5) % kTasks)] + task;
      });
      values.swap(next);
    }
    // Each step turns the ring by five and adds every index once.
    const int64_t sum = std::accumulate(values.begin(), values.end(), int64_t{0});
    TW_CHECK_EQ(sum, int64_t{kTasks} + int64_t{3000} * (kTasks * (kTasks - 1) / 2));
  }
}

TW_TEST(works_after_the_workers_fell_asleep) {
  ThreadTeam team(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> sum{0};
    team.run(10, [&](int task, int) { sum += task; });
    TW_CHECK_EQ(sum.load(), 45);
  }
}

TW_TEST(long_tasks_are_waited_for) {
  ThreadTeam team(2);
  std::vector<int> done(4, 0);
  team.run(4, [&](int task, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(task));
    done[static_cast<size_t>(task)] = 1;
  });
  TW_CHECK_EQ(std::accumulate(done.begin(), done.end(), 0), 4);
}

TW_TEST(exceptions_come_back_and_the_team_lives_on) {
  for (int threads : kTeamSizes) {
    ThreadTeam team(threads);
    for (int failing : {0, 5, 9}) {
      std::atomic<int> ran{0};
      TW_CHECK_THROWS(team.run(10,
                               [&](int task, int) {
                                 ++ran;
                                 if (task == failing) throw std::runtime_error("no");
                               }),
                      std::runtime_error);
      TW_CHECK_EQ(ran.load(), 10);
      std::atomic<int> after{0};
      team.run(10, [&](int, int) { ++after; });
      TW_CHECK_EQ(after.load(), 10);
    }
  }
}

TW_TEST(denormals_are_flushed_in_tasks_only) {
  const unsigned before = _mm_getcsr();
  TW_CHECK(half_of_smallest() != 0.0f);
  for (int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    std::atomic<int> flushed{0};
    team.run(40, [&](int, int) { flushed += half_of_smallest() == 0.0f; });
    TW_CHECK_EQ(flushed.load(), 40);
    TW_CHECK_EQ(_mm_getcsr() & 0x8040u, before & 0x8040u);
    TW_CHECK(half_of_smallest() != 0.0f);
  }
}

TW_TEST(impossible_sizes_are_refused) {
  TW_CHECK_ERROR(ThreadTeam(-1), "InvalidOptionError");
  TW_CHECK_ERROR(ThreadTeam(ThreadTeam::kMaxThreads + 1), "InvalidOptionError");
  TW_CHECK_EQ(ThreadTeam(0).threads(), tensorwright::usable_processors());
}

TW_TEST_MAIN()
