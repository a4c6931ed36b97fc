// The k-th allocation, mapping, read, thread start or copy of a short run fails: nothing is lost, the error
// has a type, and whoever survives is told what it would have been told without. Not every k is tried of what
// takes long, unless TENSORWRIGHT_ALL_FAULTS is set.
#include <cstdlib>
#include <functional>
#include <set>

#include "runtime/core/engine/engine.h"
#include "runtime/core/executor/cpu_executor.h"
#include "tests/cpp/engine_cases.h"
#include "tests/cpp/failing_calls.h"
#include "tests/cpp/guided_cases.h"
#include "tests/cpp/toy_steps.h"

using namespace tw_test;

namespace {

constexpr int64_t kNever = int64_t{1} << 60;
constexpr int64_t kGuided = 4, kAborted = 5, kLate = 6;  // requests of short_run()

// The calls between two that fail.
int64_t stride(int64_t few) { return std::getenv("TENSORWRIGHT_ALL_FAULTS") ? 1 : few; }

// Sequences that share beginnings, fork, are preempted, tell of their prompts, have salts and masks.
std::vector<Request> short_run() {
  const std::vector<int32_t> shared = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<Request> requests;
  for (int64_t id = 0; id <= kLate; ++id) {
    requests.push_back(request(id, shared, 5 + static_cast<int32_t>(id % 4)));
    Sampling& s = requests.back().sampling;
    if (id != 1) s.temperature = 1, s.seed = 7 + static_cast<uint64_t>(id);
    if (id == 0 || id == 2) s.n = 3, s.logprobs = 2;
    if (id == 1) s.prompt_logprobs = 1;
    if (id == 2) s.cache_salt = "a salt that is longer than a short string";
    if (id == 3) requests.back().prompt.insert(requests.back().prompt.begin(), 30);
    if (id == 3) s.repetition_penalty = 1.3, s.frequency_penalty = 0.4, s.top_p = 0.9;
    if (id == kGuided) requests.back() = guided(requests.back()), requests.back().sampling.n = 2;
  }
  return requests;
}

EngineOptions tight() {
  EngineOptions o = options(20, 4, 16);
  o.debug_preempt_every = 5;
  return o;
}

// Its own allocations do not fail: they are the test's.
class SparedMasks : public Answering {
 public:
  SparedMasks() : Answering(1) {}
  SharedMask take_mask(int64_t id, int32_t completion, int32_t generated) override {
    const Spare spare;
    return Answering::take_mask(id, completion, generated);
  }
  bool wait_for_masks(Clock::time_point until, std::vector<Event>* events) override {
    const Spare spare;
    return Answering::wait_for_masks(until, events);
  }

 private:
  struct Spare {
    Spare() { spared = true; }
    ~Spare() { spared = false; }
  };
};

struct Ran {
  Outcomes outcomes;
  std::set<int64_t> refused;  // by add()
  bool gave_up = false;       // step() threw
};

// The run on a core of its own; calls fail only inside of the core.
Ran run_short(const FakeBehaviour& behaviour, int64_t k, bool lasting = false) {
  Ran ran;
  SparedMasks masks;
  EngineCore core(fake(behaviour), tight(), &masks);
  FailCall fail(Call::kAllocation, k, lasting);
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
      if (!armed([&] { core.add(std::move(requests[next]), now); })) ran.refused.insert(id);
      ++next;
    }
    ran.gave_up = !armed([&] { core.step(&events); });
    masks.hear(events);
    collect(std::exchange(events, {}), &ran.outcomes);
  }
  if (ran.gave_up) return ran;
  core.check();
  for (const EngineStats::Blocks& group : core.stats().groups) {
    TW_CHECK_EQ(group.used, 0);
    TW_CHECK_EQ(group.free + group.cached, group.total);
  }
  return ran;
}

// What every completion was told is as `expected`, or the beginning of that and an error with a type, or the
// abort or timeout that it is to have; the requests that failed.
std::set<int64_t> check_told(const Outcomes& told, const Outcomes& expected, const std::string& where) {
  std::set<int64_t> failed;
  for (const auto& [name, outcome] : told) {
    const Outcome& whole = expected.at(name);
    const bool error = outcome.last.finish == "error";
    if (error) failed.insert(name % kNext);
    const bool early = (name % kNext == kAborted && outcome.last.finish == "abort") ||
                       (name % kNext == kLate && outcome.last.finish == "timeout");
    const bool good = error || early
                          ? error == !outcome.last.error_type.empty() &&
                                outcome.tokens.size() <= whole.tokens.size() &&
                                std::equal(outcome.tokens.begin(), outcome.tokens.end(), whole.tokens.begin())
                          : same(outcome, whole);
    if (!good)
      fail(__FILE__, __LINE__, where + ": completion " + std::to_string(name) + " was told otherwise");
  }
  return failed;
}

// The run through an engine's loop and mailbox, with one request aborted and one whose time is up at once.
// Calls fail in the loop alone; the engine has a thread for it, or with `stepped` none.
struct LoopRun {
  Outcomes told;
  bool struck = false, stopped = false;
};
LoopRun run_loop(bool stepped, int64_t k, bool lasting, size_t completions) {
  LoopRun ran;
  EngineOptions options = tight();
  options.debug_stepped = stepped;
  Engine engine(fake(), options);
  for (Request& r : short_run()) {
    if (r.id == kLate) r.sampling.timeout_s = 0;
    engine.submit(std::move(r));
  }
  engine.abort(kAborted);
  FailCall fail(Call::kAllocation, k, lasting);
  const auto ended = [&] {
    return std::ranges::count_if(ran.told, [](auto& o) { return !o.second.last.finish.empty(); });
  };
  while (ended() < static_cast<int64_t>(completions)) {
    if (stepped) {
      spared = false;
      engine.turn();
      spared = true;
    }
    std::vector<Event> events = engine.wait_events(stepped ? 0 : 1);
    const std::vector<Event> news = events;
    collect(std::move(events), &ran.told);
    for (const Event& event : news) {
      if (event.request_id != kGuided || event.tokens.empty() || !event.finish.empty()) continue;
      const auto& tokens = ran.told[kGuided + kNext * event.completion].tokens;
      const auto generated = static_cast<int32_t>(tokens.size());
      engine.set_mask(kGuided, event.completion, generated, mask_after(tokens.back(), generated));
    }
  }
  ran.struck = has_failed();
  ran.stopped = engine.stopped();
  TW_CHECK(!ran.stopped || engine.cause().size() > 0);
  return ran;
}

}  // namespace

TW_TEST(a_failing_allocation_of_the_core_ends_one_request_at_most) {
  const Ran sound = run_short({}, kNever);
  const int64_t allocations = kNever - fault.left;
  int64_t alone = 0;
  for (int64_t k = 1; k <= allocations; ++k) {
    const Held before;
    {
      const Ran ran = run_short({}, k);
      TW_CHECK(!ran.gave_up);
      size_t missing = 0;
      for (int64_t id : ran.refused)
        missing += static_cast<size_t>(short_run()[static_cast<size_t>(id)].sampling.n);
      TW_CHECK_EQ(ran.outcomes.size() + missing, sound.outcomes.size());
      std::set<int64_t> failed = check_told(ran.outcomes, sound.outcomes, "allocation " + std::to_string(k));
      failed.insert(ran.refused.begin(), ran.refused.end());
      TW_CHECK(failed.size() <= 1);
      alone += !failed.empty();
    }
    TW_CHECK(Held() == before);
  }
  std::printf("of %ld allocations %ld end a request\n", static_cast<long>(allocations),
              static_cast<long>(alone));
  TW_CHECK(alone > 0);
}

// With no memory left for good, the core gives up at last: it harms nothing, and the engine above it tells
// everybody (below).
TW_TEST(a_core_that_gets_no_memory_any_more_gives_up) {
  const Ran sound = run_short({}, kNever);
  const int64_t allocations = kNever - fault.left;
  for (int64_t k = 1; k <= allocations; k += stride(5)) {
    const Held before;
    {
      Ran ran = run_short({}, k, true);
      for (auto& [name, outcome] : ran.outcomes) {
        if (outcome.last.finish.empty()) outcome.last.finish = "error", outcome.last.error_type = "none yet";
      }
      check_told(ran.outcomes, sound.outcomes, "no memory from allocation " + std::to_string(k) + " on");
    }
    TW_CHECK(Held() == before);
  }
}

// With the loop, its mailbox and its events: everybody hears how it ended, and one failure stops no engine.
TW_TEST(a_failing_allocation_of_the_loop_is_told_to_whom_it_hits) {
  const Outcomes sound = run_short({}, kNever).outcomes;
  spared = true;
  for (const bool stepped : {true, false}) {
    bool struck = true;
    int64_t k = 1;
    for (; struck; k += stride(stepped ? 1 : 7)) {
      const Held before;
      {
        const LoopRun ran = run_loop(stepped, k, false, sound.size());
        struck = ran.struck;
        TW_CHECK(!ran.stopped);
        TW_CHECK(check_told(ran.told, sound, "allocation " + std::to_string(k) + " of the loop").size() <= 1);
      }
      TW_CHECK(Held() == before);
    }
    std::printf("%ld allocations of a loop %s\n", static_cast<long>(k), stepped ? "in steps" : "in a thread");
  }
  spared = false;
}

TW_TEST(an_engine_that_gets_no_memory_any_more_stops_and_tells_everybody) {
  const Outcomes sound = run_short({}, kNever).outcomes;
  spared = true;
  int64_t stopped = 0;
  bool struck = true;
  for (int64_t k = 1; struck; k += stride(5)) {
    const Held before;
    {
      const LoopRun ran = run_loop(true, k, true, sound.size());
      struck = ran.struck;
      stopped += ran.stopped;
      check_told(ran.told, sound, "no memory from allocation " + std::to_string(k) + " of the loop on");
    }
    TW_CHECK(Held() == before);
  }
  spared = false;
  TW_CHECK(stopped > 0);
}

TW_TEST(a_failing_copy_of_a_block_ends_no_other_request) {
  const Ran sound = run_short({}, kNever);
  for (int32_t k = 1; k < 12; ++k) {
    FakeBehaviour behaviour;
    behaviour.fail_copies = k;
    const Ran ran = run_short(behaviour, kNever);
    TW_CHECK(!ran.gave_up);
    check_told(ran.outcomes, sound.outcomes, "copy " + std::to_string(k));
  }
}

namespace {

// Opens an engine, runs steps of it, copies blocks; what came out.
std::vector<float> short_life(const Files& files, LoadMode load, int threads) {
  CpuExecutor executor(files.plan(), files.weights(), {threads, load, size_t{1} << 20});
  executor.allocate({40}, 40, 40, 2, 0);
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
