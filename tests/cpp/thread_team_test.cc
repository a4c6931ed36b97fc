// The thread team: every task once, in any crowd; denormals flushed; exceptions come back.
#include "runtime/core/base/thread_team.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "runtime/core/base/error.h"
#include "runtime/core/base/processor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_topology.h"

using tensorwright::Error;
using tensorwright::float_control;
using tensorwright::kFlushDenormals;
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
  const uint64_t before = float_control();
  TW_CHECK(half_of_smallest() != 0.0f);
  for (int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    std::atomic<int> flushed{0};
    team.run(40, [&](int, int) { flushed += half_of_smallest() == 0.0f; });
    TW_CHECK_EQ(flushed.load(), 40);
    TW_CHECK_EQ(float_control() & kFlushDenormals, before & kFlushDenormals);
    TW_CHECK(half_of_smallest() != 0.0f);
  }
}

TW_TEST(placed_teams_run_every_task_once) {
  const tensorwright::FakeTopology fake(2, 3, 5, 2);  // clusters of five threads, and of eight and two
  for (int threads : {2, 7, 30, 60}) {
    ThreadTeam team(threads, tensorwright::place_threads(fake.read(), threads));
    for (int tasks : {1, 5, 29, 30, 31, 500}) {
      for (int round = 0; round < 20; ++round) {
        std::vector<int> runs(static_cast<size_t>(tasks), 0);
        team.run(tasks, [&](int task, int) { ++runs[static_cast<size_t>(task)]; });
        TW_CHECK_EQ(std::ranges::count(runs, 1), tasks);
      }
    }
  }
}

TW_TEST(work_for_each_thread_is_not_stolen) {
  for (int threads : kTeamSizes) {
    ThreadTeam team(threads);
    std::vector<std::thread::id> ran(static_cast<size_t>(threads));
    team.run_on_each([&](int thread) { ran[static_cast<size_t>(thread)] = std::this_thread::get_id(); });
    TW_CHECK(ran[0] == std::this_thread::get_id());
    std::ranges::sort(ran);
    TW_CHECK(std::ranges::adjacent_find(ran) == ran.end());
    TW_CHECK(ran[0] != std::thread::id());
  }
}

// The share of a thread that does not come is taken by the others.
TW_TEST(shares_of_sleeping_threads_are_stolen) {
  ThreadTeam team(20);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ran{0};
    team.run(200, [&](int, int thread) {
      if (thread == 3) std::this_thread::sleep_for(std::chrono::microseconds(300));
      ++ran;
    });
    TW_CHECK_EQ(ran.load(), 200);
  }
}

TW_TEST(a_team_that_is_alone_keeps_the_time_of_every_task) {
  ThreadTeam team = ThreadTeam::alone(6);
  std::vector<int> threads;
  team.run(4, [&](int, int thread) { threads.push_back(thread); });
  team.run_on_each([&](int thread) { threads.push_back(thread); });
  TW_CHECK(threads == (std::vector<int>{0, 1, 3, 4, 0, 1, 2, 3, 4, 5}));
  TW_CHECK_EQ(team.recorded().size(), size_t{2});
  TW_CHECK_EQ(team.recorded()[0].size(), size_t{4});
  for (double seconds : team.recorded()[1]) TW_CHECK(seconds >= 0);
}

TW_TEST(impossible_sizes_are_refused) {
  TW_CHECK_ERROR(ThreadTeam(-1), "InvalidOptionError");
  TW_CHECK_ERROR(ThreadTeam(ThreadTeam::kMaxThreads + 1), "InvalidOptionError");
  TW_CHECK_EQ(ThreadTeam(0).threads(), tensorwright::usable_processors());
}

TW_TEST_MAIN()
