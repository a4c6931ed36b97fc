// The executor below the bindings: no allocation in a step, damaged plans, the same bits in any company.
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>

#include "runtime/core/base/error.h"
#include "runtime/core/executor/cpu_executor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_topology.h"
#include "tests/cpp/toy_steps.h"

using namespace tensorwright;
using tw_test::Files;
using tw_test::Random;
using tw_test::run;
using tw_test::same_bits;
using tw_test::step_of;
using tw_test::ToyPlan;

namespace {
std::atomic<int64_t> allocations{0};
}

// Out of line, or the compiler sees malloc where it expects new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  void* memory = malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { free(memory); }

namespace {

constexpr int32_t kBlocks = 200, kMaxTokens = 64, kMaxSeqs = 4;

}  // namespace

TW_TEST(a_step_allocates_nothing) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  for (int threads : {1, 2}) {
    CpuExecutor executor(files.plan(), files.weights(), {threads, LoadMode::map});
    executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    const Step prefill = step_of(0, 50, 100), decode = step_of(50, 51, 100);
    const int64_t before = allocations;
    executor.run(prefill);
    executor.run(decode);
    TW_CHECK_EQ(allocations - before, int64_t{0});
  }
}

// The toy plan with sparse prefill: each block of 16 queries of a prompt sees 4 blocks of keys.
namespace {

ToyPlan sparse_toy() {
  ToyPlan toy;
  toy.instructions[5].ints[kBudgetEnd] = 4 * ToyPlan::kBlock;
  return toy;
}

Step prompt_of(int32_t prompt, Step step) {
  step.prompt_lens = {prompt};
  return step;
}

}  // namespace

TW_TEST(a_sparse_step_allocates_nothing) {
  const Files files;
  ToyPlan toy = sparse_toy();
  files.write(toy.bytes(), toy.data);
  for (int threads : {1, 2}) {
    CpuExecutor executor(files.plan(), files.weights(), {threads, LoadMode::map});
    executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    const Step first = prompt_of(114, step_of(0, 64, 100)), second = prompt_of(114, step_of(64, 114, 100));
    const int64_t before = allocations;
    executor.run(first);
    executor.run(second);
    TW_CHECK_EQ(allocations - before, int64_t{0});
  }
}

TW_TEST(chunks_and_threads_do_not_change_what_rows_choose) {
  const Files files;
  ToyPlan toy = sparse_toy();
  files.write(toy.bytes(), toy.data);
  const int32_t length = tw_test::emulated() ? 176 : 608;  // the last row chooses too
  std::vector<float> expected, dense;
  for (const auto& [threads, chunk, prompt] : {std::tuple(1, 64, length), std::tuple(2, 48, length),
                                               std::tuple(3, 16, length), std::tuple(2, 64, 1)}) {
    const auto executor = make_cpu_executor(files.plan(), files.weights(), {threads, LoadMode::map});
    executor->allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    std::vector<float> logits;
    for (int32_t at = 0; at < length; at += chunk)
      logits = run(*executor, prompt_of(prompt, step_of(at, std::min(at + chunk, length), 150)));
    if (prompt == 1) {
      dense = logits;
      continue;
    }
    if (expected.empty()) expected = logits;
    TW_CHECK(same_bits(logits, expected));
  }
  TW_CHECK(!same_bits(dense, expected));
}

// Faults of memory for the first time: as many as pages that no step should have to wait for.
TW_TEST(the_first_step_meets_no_page_fault) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  int64_t faults[2];
  for (const size_t populate : {size_t{0}, size_t{256} << 20}) {
    CpuExecutor executor(files.plan(), files.weights(), {2, LoadMode::copy, populate});
    executor.allocate({2000}, 1100, kMaxTokens, kMaxSeqs, 0);
    executor.wait_for_memory();
    const Step step = step_of(0, 1100, 1999);  // from the last block down
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    executor.run(step);
    getrusage(RUSAGE_SELF, &after);
    faults[populate > 0] = after.ru_minflt - before.ru_minflt;
  }
  std::printf("page faults of a first step: %ld, populated %ld\n", faults[0], faults[1]);
  TW_CHECK(faults[0] >= 8);
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer keeps a note of every access in memory of its own, which the first step touches in any
  // case.
  TW_CHECK(faults[1] < faults[0]);
#else
  TW_CHECK(faults[1] <= faults[0] / 4);
#endif
}

TW_TEST(chunks_threads_and_loading_do_not_change_a_bit) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  const int32_t length = tw_test::emulated() ? 530 : 1100;  // two or three splits of attention
  std::vector<float> expected;
  for (const auto& [threads, chunk, load] :
       {std::tuple(1, 64, LoadMode::map), std::tuple(2, 64, LoadMode::map), std::tuple(3, 17, LoadMode::copy),
        std::tuple(2, 1, LoadMode::copy)}) {
    const auto executor = make_cpu_executor(files.plan(), files.weights(), {threads, load});
    executor->allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    std::vector<float> logits;
    for (int32_t at = 0; at < length; at += chunk) {
      logits = run(*executor, step_of(at, std::min(at + chunk, length), 150));
    }
    if (expected.empty()) expected = logits;
    TW_CHECK(same_bits(logits, expected));
  }
  TW_CHECK_EQ(expected.size(), size_t{ToyPlan::kVocab});
}

// Two nodes that the machine does not have: threads that it cannot place stay where they are.
TW_TEST(placed_threads_and_other_cuts_do_not_change_a_bit) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  const Topology topology = FakeTopology(2, 1, 2, 1).read();
  const std::vector<int> before = usable_processor_ids();
  std::vector<float> expected;
  const WorkCut fine{4 << 10, 4 << 10, 16 << 10, 16 << 10, 64};
  const WorkCut coarse{16 << 20, 16 << 20, 16 << 20, 16 << 20, 1};
  for (const auto& [threads, numa, cut] :
       {std::tuple(1, Numa::off, WorkCut()), std::tuple(4, Numa::automatic, WorkCut()),
        std::tuple(3, Numa::split, fine), std::tuple(2, Numa::interleave, coarse)}) {
    CpuExecutor executor(files.plan(), files.weights(), {threads, LoadMode::copy, size_t{1} << 20, numa, cut},
                         &topology);
    executor.begin_thread();
    executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
    TW_CHECK_EQ(executor.team()->placement().nodes, numa == Numa::off ? 1 : 2);
    const std::vector<float> logits = run(executor, step_of(0, 60, 150));
    if (expected.empty()) expected = logits;
    TW_CHECK(same_bits(logits, expected));
    keep_to_processors(before);
  }
}

TW_TEST(copied_blocks_carry_on) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  CpuExecutor executor(files.plan(), files.weights(), {2, LoadMode::map});
  executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0);
  run(executor, step_of(0, 40, 20));
  for (int32_t i = 0; i < 3; ++i) executor.copy_block(0, 20 - i, 120 - i);
  TW_CHECK(same_bits(run(executor, step_of(40, 41, 20)), run(executor, step_of(40, 41, 120))));
  TW_CHECK_ERROR(executor.copy_block(1, 0, 0), "InvalidRequestError");
  TW_CHECK_ERROR(executor.copy_block(0, 0, kBlocks), "InvalidRequestError");
  TW_CHECK_ERROR(executor.copy_block(0, -1, 0), "InvalidRequestError");
}

TW_TEST(a_model_with_states_takes_a_slot_per_sequence) {
  const Files files;
  ToyPlan toy;
  toy.states = {{64}, {192}};
  files.write(toy.bytes(), toy.data);
  CpuExecutor executor(files.plan(), files.weights(), {1, LoadMode::map, size_t{1} << 20});
  TW_CHECK_EQ(executor.facts().state_bytes, int64_t{256});
  TW_CHECK_ERROR(executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 0), "InvalidRequestError");
  executor.allocate({kBlocks}, kMaxTokens, kMaxTokens, kMaxSeqs, 3);
  Step step = step_of(0, 4, 20);
  TW_CHECK_ERROR(executor.run(step), "InvalidRequestError");
  step.state_slots = {3};
  TW_CHECK_ERROR(executor.run(step), "InvalidRequestError");
  step.state_slots = {2};
  TW_CHECK_EQ(executor.run(step).rows, 1);
  executor.copy_state(2, 0);
  TW_CHECK_ERROR(executor.copy_state(0, 3), "InvalidRequestError");
  TW_CHECK_ERROR(executor.copy_state(-1, 0), "InvalidRequestError");
}

TW_TEST(the_states_of_a_slot_lie_apart_and_are_copied_together) {
  ToyPlan toy;
  constexpr size_t kLarge = (size_t{5} << 19) + 64;  // more than two parts of a copy
  toy.states = {{64}, {kLarge}};
  StateStorage storage(Plan::parse(toy.bytes()));
  storage.allocate(3);
  std::map<char*, char*> places;  // begin -> end
  for (int32_t slot = 0; slot < 3; ++slot) {
    for (const auto& [layer, bytes] : {std::pair<size_t, size_t>(0, 64), {1, kLarge}}) {
      char* at = storage.at(layer, slot);
      TW_CHECK_EQ(reinterpret_cast<uintptr_t>(at) % 64, uintptr_t{0});
      TW_CHECK(places.emplace(at, at + bytes).second);
      std::memset(at, static_cast<int>(10 * slot) + static_cast<int>(layer), bytes);
    }
  }
  ThreadTeam team(2);
  storage.copy(2, 0, team);
  const auto holds = [&](size_t layer, int32_t slot, char value, size_t bytes) {
    return std::all_of(storage.at(layer, slot), storage.at(layer, slot) + bytes,
                       [&](char byte) { return byte == value; });
  };
  TW_CHECK(holds(0, 0, 20, 64) && holds(1, 0, 21, kLarge));
  TW_CHECK(holds(0, 1, 10, 64) && holds(1, 1, 11, kLarge));
  TW_CHECK(holds(0, 2, 20, 64) && holds(1, 2, 21, kLarge));
  size_t all = 0;
  char* end = nullptr;
  for (const auto& [begin, behind] : places) {
    TW_CHECK(begin >= end);
    end = behind;
  }
  for (const MemoryPiece& piece : storage.pieces()) all += piece.bytes;
  TW_CHECK_EQ(all, 3 * (64 + kLarge));
}

TW_TEST(wrong_files_are_refused) {
  const Files files;
  ToyPlan toy;
  const auto load = [&] { CpuExecutor(files.plan(), files.weights(), {1, LoadMode::map}); };
  TW_CHECK_ERROR(load(), "EngineError");  // not there
  files.write(toy.bytes(), std::vector<char>(toy.data.begin(), toy.data.end() - 1));
  TW_CHECK_ERROR(load(), "EngineError");  // weights one byte short
  files.write({}, toy.data);
  TW_CHECK_ERROR(load(), "EngineError");  // empty plan
  const auto load_folder = [&] { CpuExecutor(files.folder(), files.weights(), {1, LoadMode::map}); };
  TW_CHECK_ERROR(load_folder(), "EngineError");
}

TW_TEST(order_of_calls_is_checked) {
  const Files files;
  ToyPlan toy;
  files.write(toy.bytes(), toy.data);
  CpuExecutor executor(files.plan(), files.weights(), {1, LoadMode::map});
  TW_CHECK_ERROR(executor.run(step_of(0, 1, 0)), "InvalidRequestError");
  TW_CHECK_ERROR(executor.allocate({1, 1}, 1, 1, 1, 0), "InvalidRequestError");
  TW_CHECK_ERROR(executor.allocate({-1}, 1, 1, 1, 0), "InvalidRequestError");
  TW_CHECK_ERROR(executor.allocate({1}, 0, 1, 1, 0), "InvalidRequestError");
  TW_CHECK_ERROR(executor.allocate({0x7fffffff}, 1, 1, 1, 0), "InvalidRequestError");
  executor.allocate({1}, 1, 1, 1, 0);
  TW_CHECK_ERROR(executor.allocate({1}, 1, 1, 1, 0), "InvalidRequestError");
  TW_CHECK_EQ(executor.run(step_of(0, 1, 0)).rows, 1);
}

// A damaged plan that the reader takes must also run without leaving its memory (run this under a sanitizer).
TW_TEST(damaged_plans_run_or_are_refused) {
  const Files files;
  ToyPlan toy;
  const std::vector<std::byte> sound = toy.bytes();
  Random random{11};
  files.write(sound, toy.data);
  int ran = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes = sound;
    const size_t at = random.below(static_cast<uint32_t>(bytes.size()));
    bytes[at] ^= static_cast<std::byte>(1u << random.below(8));
    files.write(files.plan(), bytes.data(), bytes.size());
    try {
      CpuExecutor executor(files.plan(), files.weights(), {1, LoadMode::map});
      executor.allocate({8}, 20, 20, 2, 0);
      run(executor, step_of(0, 20, 5));
      run(executor, step_of(20, 21, 5));
      ++ran;
    } catch (const Error& error) {
      const std::string& type = error.type();
      TW_CHECK(type == "EngineError" || type == "InvalidRequestError" || type == "OutOfMemoryError");
    }
  }
  TW_CHECK(ran > 0);
}

TW_TEST_MAIN()
