// The k-th allocation, mapping, read, thread start or copy of a short run fails, for every k: nothing is
// lost, the error has a type, and whoever survives is told what it would have been told without.
#include <functional>

#include "runtime/core/cpu_executor.h"
#include "runtime/core/engine.h"
#include "tests/cpp/engine_cases.h"
#include "tests/cpp/failing_calls.h"
#include "tests/cpp/toy_steps.h"

using namespace tw_test;

namespace {

constexpr int64_t kNever = int64_t{1} << 60;

// Sequences that share beginnings, fork, are preempted and tell of their prompts.
std::vector<Request> short_run() {
  const std::vector<int32_t> shared = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<Request> requests;
  for (int64_t id = 0; id < 4; ++id) {
    requests.push_back(request(id, shared, 5 + static_cast<int32_t>(id)));
    Sampling& s = requests.back().sampling;
    if (id != 1) s.temperature = 1, s.seed = 7 + static_cast<uint64_t>(id);
    if (id % 2 == 0) s.n = 3, s.logprobs = 2;
    if (id == 1) s.prompt_logprobs = 1;
    if (id == 3) requests.back().prompt.insert(requests.back().prompt.begin(), 30);
  }
  return requests;
}

EngineOptions tight() {
  EngineOptions o = options(20, 4, 16);
  o.debug_preempt_every = 5;
  return o;
}

struct Ran {
  Outcomes outcomes;
  std::vector<int64_t> refused;  // by add()
  bool gave_up = false;          // step() threw
};

// The run on a core of its own; calls fail only inside of the core.
Ran run_short(const FakeBehaviour& behaviour, Call call, int64_t k) {
  Ran ran;
  EngineCore core(fake(behaviour), tight());
  FailCall fail(call, k);
  fault.armed = false;
  const auto armed = [&](auto&& act) {
    fault.armed = true;
    try {
      act();
      fault.armed = false;
      return true;
    } catch (const std::bad_alloc&) {
      fault.armed = false;
      return false;
    }
  };
  std::vector<Request> requests = short_run();
  std::vector<Event> events;
  for (size_t next = 0; (next < requests.size() || !core.idle()) && !ran.gave_up;) {
    if (next < requests.size()) {
      const int64_t id = requests[next].id;
      const auto now = Clock::now();
      if (!armed([&] { core.add(std::move(requests[next]), now); })) ran.refused.push_back(id);
      ++next;
    }
    ran.gave_up = !armed([&] { core.step(&events); });
    collect(std::exchange(events, {}), &ran.outcomes);
  }
  if (ran.gave_up) return ran;
  for (const EngineStats::Blocks& group : core.stats().groups) {
    TW_CHECK_EQ(group.used, 0);
    TW_CHECK_EQ(group.free + group.cached, group.total);
  }
  return ran;
}

// What every completion was told is as `expected`, or the beginning of that and an error with a type; how
// many failed.
int check_told(const Outcomes& told, const Outcomes& expected, const std::string& where) {
  int failed = 0;
  for (const auto& [name, outcome] : told) {
    const Outcome& whole = expected.at(name);
    const bool error = outcome.last.finish == "error";
    failed += error;
    const bool good =
        error ? !outcome.last.error_type.empty() && outcome.tokens.size() <= whole.tokens.size() &&
                    std::equal(outcome.tokens.begin(), outcome.tokens.end(), whole.tokens.begin())
              : same(outcome, whole);
    if (!good)
      fail(__FILE__, __LINE__, where + ": completion " + std::to_string(name) + " was told otherwise");
  }
  return failed;
}

}  // namespace

TW_TEST(a_failing_copy_of_a_block_ends_no_other_request) {
  const Ran sound = run_short({}, Call::kAllocation, kNever);
  for (int32_t k = 1; k < 12; ++k) {
    FakeBehaviour behaviour;
    behaviour.fail_copies = k;
    const Ran ran = run_short(behaviour, Call::kAllocation, kNever);
    TW_CHECK(!ran.gave_up);
    check_told(ran.outcomes, sound.outcomes, "copy " + std::to_string(k));
  }
}

namespace {

// Opens an engine, runs steps of it, copies blocks; what came out.
std::vector<float> short_life(const Files& files, LoadMode load, int threads) {
  CpuExecutor executor(files.plan(), files.weights(), {threads, load, size_t{1} << 20});
  executor.allocate({40}, 40, 40, 2);
  run(executor, step_of(0, 30, 20));
  executor.copy_block(0, 20, 30);
  executor.wait_for_memory();
  return run(executor, step_of(30, 31, 20));
}

}  // namespace

TW_TEST(a_failing_call_of_an_executor_is_told_by_type) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  for (const LoadMode load : {LoadMode::map, LoadMode::copy}) {
    const std::vector<float> sound = short_life(files, load, 3);
    for (const Call call : {Call::kAllocation, Call::kMapping, Call::kRead, Call::kThread}) {
      int failed = 0;
      bool struck = true;
      for (int64_t k = 1; struck; ++k) {
        const Held before;
        try {
          const FailCall fail(call, k);
          const std::vector<float> logits = short_life(files, load, 3);
          struck = has_failed();
          TW_CHECK(!struck && same_bits(logits, sound));
        } catch (const Error& error) {
          ++failed;
          TW_CHECK(error.type() == "OutOfMemoryError" || error.type() == "EngineError");
        } catch (const std::bad_alloc&) {
          ++failed;
          TW_CHECK(call == Call::kAllocation);
        }
        TW_CHECK(Held() == before);
      }
      std::printf("%d calls of kind %d failed\n", failed, static_cast<int>(call));
      TW_CHECK(failed > 0);
    }
  }
}

TW_TEST(an_engine_whose_thread_cannot_start_says_so) {
  const Held before;
  const auto start = [] {
    auto executor = fake();
    const FailCall fail(Call::kThread, 1);
    Engine engine(std::move(executor), tight());
  };
  TW_CHECK_ERROR(start(), "OutOfMemoryError");
  TW_CHECK(Held() == before);
}

TW_TEST_MAIN()
