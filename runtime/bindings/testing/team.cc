// The thread team in Python, for benchmarks: what a region costs, and the seconds of the tasks of a step.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/bindings/kernel_bindings.h"
#include "runtime/core/base/clock.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/executor/cpu_executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Seconds = std::vector<double>;

// Returns the seconds of each of `regions` regions of `tasks` tasks that do nothing.
Seconds region_seconds(int threads, int tasks, int regions, bool placed) {
  ThreadTeam team(threads, placed ? place_threads(Topology::of_machine(), threads) : Placement{});
  Seconds seconds;
  seconds.reserve(static_cast<size_t>(regions));
  for (int region = 0; region < regions; ++region) {
    const Clock::time_point begin = Clock::now();
    team.run(tasks, [](int, int) {});
    seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

// Sequences of `context` tokens, of which the last `tokens` are computed.
Step step_of(const ModelFacts& facts, int32_t sequences, int32_t tokens, int32_t context) {
  Step step;
  step.seq_starts = {0};
  step.groups.resize(facts.block_bytes.size());
  const int32_t blocks = (context - 1) / facts.block_size + 1;
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    for (int32_t position = context - tokens; position < context; ++position) {
      step.token_ids.push_back((position + sequence) % facts.vocab_size);
      step.positions.push_back(position);
      for (GroupTables& group : step.groups)
        group.slots.push_back(sequence * blocks * facts.block_size + position);
    }
    for (GroupTables& group : step.groups) {
      group.max_blocks = blocks;
      for (int32_t block = 0; block < blocks; ++block)
        group.block_tables.push_back(sequence * blocks + block);
    }
    step.seq_starts.push_back(step.tokens());
    step.context_lens.push_back(context);
    step.logit_rows.push_back(step.tokens() - 1);
  }
  return step;
}

// Runs a step `repeats` times as a team of `threads` threads would cut it, every task on the calling thread.
// Returns the least seconds of each task of each region, and as a region of its own at the end what a step
// took at least beside them.
std::vector<Seconds> task_seconds(const std::string& plan, const std::string& weights, int threads,
                                  int32_t sequences, int32_t tokens, int32_t context, int repeats) {
  CpuExecutorOptions options;
  options.load = LoadMode::copy;
  options.team = std::shared_ptr<ThreadTeam>(new ThreadTeam(ThreadTeam::alone(threads)));
  CpuExecutor executor(plan, weights, options);
  const ModelFacts& facts = executor.facts();
  const int32_t blocks = ((context - 1) / facts.block_size + 1) * sequences;
  executor.allocate(std::vector<int32_t>(facts.block_bytes.size(), blocks), sequences * tokens, sequences,
                    sequences, 0);
  const Step step = step_of(facts, sequences, tokens, context);
  executor.run(step);
  std::vector<Seconds> least;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    options.team->forget_recorded();
    const Clock::time_point begin = Clock::now();
    executor.run(step);
    double beside = seconds_since(begin);
    std::vector<Seconds> now = options.team->recorded();
    for (const Seconds& region : now) beside -= std::accumulate(region.begin(), region.end(), 0.0);
    now.push_back({std::max(beside, 0.0)});
    if (least.empty()) least = now;
    for (size_t region = 0; region < least.size(); ++region)
      for (size_t task = 0; task < least[region].size(); ++task)
        least[region][task] = std::min(least[region][task], now[region][task]);
  }
  return least;
}

void bind_team(nb::module_& m) {
  m.attr("CLUSTER_THREADS") = ThreadTeam::kClusterThreads;
  m.def("region_seconds", &region_seconds, "threads"_a, "tasks"_a, "regions"_a, "placed"_a = false,
        nb::call_guard<nb::gil_scoped_release>(), "The seconds of regions of tasks that do nothing.");
  m.def("task_seconds", &task_seconds, "plan"_a, "weights"_a, "threads"_a, "sequences"_a, "tokens"_a,
        "context"_a, "repeats"_a = 3, nb::call_guard<nb::gil_scoped_release>(),
        "The seconds of each task of each region of a step that is cut for so many threads, then [the "
        "seconds of the step beside them]; all tasks run on one thread.");
}

const RegisteredBindings registered_team(&bind_team);

}  // namespace
}  // namespace tensorwright
