// SimulatedFleet in Python: requests through simulated engines on a virtual clock. The loop is C++; Python
// decides only where requests go.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/spans.h"
#include "runtime/core/simulation/fleet.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> span_of(const Column<T>& column) {
  return {column.data(), column.size()};
}

// Returns the values as an array that owns a copy of them.
template <typename Range>
nb::object array_of(const Range& values) {
  using T = std::remove_cvref_t<decltype(values[0])>;
  auto copy = std::make_unique<T[]>(values.size());
  std::ranges::copy(values, copy.get());
  T* data = copy.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner));
}

struct PyFleetOptions : FleetOptions {
  ModelFacts facts;
  EngineOptions engine;
  StepPrices prices;
  bool keep_steps = false;
};

// What tenants have, by their numbers.
struct PyTenants {
  PyTenants(std::vector<double> weights_of, std::vector<int32_t> priorities_of,
            std::vector<double> deadlines_of)
      : weights(std::move(weights_of)),
        priorities(std::move(priorities_of)),
        deadlines(std::move(deadlines_of)) {}
  std::vector<double> weights;
  std::vector<int32_t> priorities;
  std::vector<double> deadlines;
};

void check_groups(const ModelFacts& facts) {
  if (facts.block_bytes.size() != facts.group_windows.size())
    throw Error("InvalidOptionError", "[fleet] each cache group must have a window, 0 for none");
}

std::tuple<double, double> attention_of(const PyFleetOptions& options,
                                        const std::vector<std::tuple<int32_t, int32_t>>& sequences) {
  check_groups(options.facts);
  Step step;
  step.seq_starts = {0};
  for (const auto& [tokens, context] : sequences) {
    if (tokens < 1 || context < tokens)
      throw Error("InvalidOptionError", "[fleet] a sequence must have tokens, and a context that holds them");
    step.seq_starts.push_back(step.seq_starts.back() + tokens);
    step.context_lens.push_back(context);
  }
  const StepShape shape = ShapeCounter(options.facts).shape_of(step);
  return {shape.pairs, shape.reads};
}

class PyFleet {
 public:
  explicit PyFleet(const PyFleetOptions& options) {
    EngineOptions engine = options.engine;
    if (options.keep_steps) engine.timeline = timeline_ = std::make_shared<Timeline>();
    if (options.keep_steps && options.replicas > 1)
      throw Error("InvalidOptionError", "[fleet] keep_steps is for one replica; leave it out");
    check_groups(options.facts);
    nb::gil_scoped_release release;
    fleet_ = std::make_unique<Fleet>(options.facts, engine, options.prices, options);
  }

  void run(const Column<int64_t>& arrivals, const Column<int32_t>& prompts, const Column<int32_t>& outputs,
           const Column<int32_t>& prefixes, const Column<int32_t>& prefix_tokens,
           const Column<int32_t>& conversations, const Column<int32_t>& tenants, const PyTenants& table,
           const nb::callable& choose, const nb::callable& finished) {
    if (std::exchange(ran_, true))
      throw Error("InvalidOptionError", "[fleet] a fleet runs once; make another one");
    const Traffic traffic{span_of(arrivals),      span_of(prompts),       span_of(outputs), span_of(prefixes),
                          span_of(prefix_tokens), span_of(conversations), span_of(tenants), table.weights,
                          table.priorities,       table.deadlines};
    const FleetRouter router{[&](size_t request) {
                               nb::gil_scoped_acquire acquire;
                               if (PyErr_CheckSignals() != 0) throw nb::python_error();
                               return nb::cast<int32_t>(choose(request));
                             },
                             [&](size_t request) {
                               nb::gil_scoped_acquire acquire;
                               finished(request);
                             }};
    nb::gil_scoped_release release;
    fleet_->run(traffic, router);
  }

  Facts outcomes() const {
    const Outcomes& outcomes = fleet_->outcomes();
    Facts d;
    d["replica"] = array_of(outcomes.replicas);
    d["started"] = array_of(outcomes.started);
    d["first"] = array_of(outcomes.first);
    d["ended"] = array_of(outcomes.ended);
    d["cached"] = array_of(outcomes.cached);
    d["generated"] = array_of(outcomes.generated);
    d["late"] = array_of(outcomes.late);
    d["gap"] = array_of(outcomes.gaps);
    return d;
  }

  Facts gaps() const {
    const GapCounts& gaps = fleet_->gaps();
    std::vector<double> seconds;
    std::vector<int64_t> counts;
    for (size_t bin = 0; bin < GapCounts::kBins; ++bin) {
      if (gaps.counts()[bin] == 0) continue;
      seconds.push_back(GapCounts::seconds_of(bin));
      counts.push_back(gaps.counts()[bin]);
    }
    Facts d;
    d["seconds"] = array_of(seconds);
    d["counts"] = array_of(counts);
    d["count"] = gaps.count();
    d["sum"] = gaps.sum_seconds();
    d["max"] = gaps.max_seconds();
    return d;
  }

  FactsList replicas() const {
    FactsList table;
    for (const Replica& replica : fleet_->replicas()) {
      const ReplicaUse& use = replica.use();
      const EngineStats stats = replica.stats();
      const double busy = use.busy_ns > 0 ? static_cast<double>(use.busy_ns) : 1.0;
      Facts d;
      d["busy_s"] = static_cast<double>(use.busy_ns) * 1e-9;
      d["mean_running"] = use.running_ns / busy;
      d["mean_waiting"] = use.waiting_ns / busy;
      d["max_waiting"] = use.max_waiting;
      d["mean_kv_used"] = use.used_share_ns / busy;
      d["max_kv_used"] = use.max_used_share;
      d["refused"] = use.refused;
      d["finished"] = stats.finished;
      d["steps"] = stats.steps.steps;
      d["preemptions"] = stats.steps.preemptions;
      d["prefill_tokens"] = stats.steps.prefill_tokens;
      d["decode_tokens"] = stats.steps.decode_tokens;
      d["prefix_lookup_tokens"] = stats.steps.prefix_lookup_tokens;
      d["prefix_hit_tokens"] = stats.steps.prefix_hit_tokens;
      d["evictions"] = stats.evictions;
      d["used_blocks"] = stats.used_blocks;
      d["total_blocks"] = stats.total_blocks;
      table.append(d);
    }
    return table;
  }

  std::tuple<Spans, int64_t> steps() const {
    if (timeline_) return spans_of(*timeline_);
    throw Error("InvalidOptionError", "[fleet] no steps were kept: keep_steps was not set");
  }

 private:
  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<Fleet> fleet_;
  bool ran_ = false;
};

void bind_simulation_options(nb::module_& m) {
  using namespace nb::literals;
  using Options = PyFleetOptions;
  const auto engine = [](auto EngineOptions::* field) {
    return std::pair{[field](const Options& o) { return o.engine.*field; },
                     [field](Options& o, std::remove_cvref_t<decltype(o.engine.*field)> value) {
                       o.engine.*field = value;
                     }};
  };
  const auto facts = [](auto ModelFacts::* field) {
    return std::pair{[field](const Options& o) { return o.facts.*field; },
                     [field](Options& o, std::remove_cvref_t<decltype(o.facts.*field)> value) {
                       o.facts.*field = std::move(value);
                     }};
  };
  const auto prices = [](auto StepPrices::* field) {
    return std::pair{[field](const Options& o) { return o.prices.*field; },
                     [field](Options& o, std::remove_cvref_t<decltype(o.prices.*field)> value) {
                       o.prices.*field = std::move(value);
                     }};
  };
  nb::class_<Options> options(m, "FleetOptions",
                              "A fleet to simulate: its replicas, which are alike, and what a step costs.");
  const auto add = [&](const char* name, auto pair, const char* help) {
    options.def_prop_rw(name, pair.first, pair.second, help);
  };
  options.def(nb::init<>())
      .def("attention", &attention_of, "sequences"_a,
           "Of a step of these sequences, (tokens of the step, positions after it) of each: the pairs of a "
           "token "
           "and a position that it attends to, and the positions that are read. Layers with windows count "
           "with "
           "the share of their cache groups.")
      .def_rw("replicas", &Options::replicas, "engines, at most 1000")
      .def_rw("gap_percentile", &Options::gap_percentile,
              "the percentile of the times between a request's tokens that is kept of it")
      .def_rw("seed", &Options::seed, "of the draws from spread")
      .def_rw("keep_steps", &Options::keep_steps, "whether the steps of the only replica are kept");
  add("max_seq_len", facts(&ModelFacts::max_seq_len), "positions of the model");
  add("block_size", facts(&ModelFacts::block_size), "positions of a KV block");
  add("block_bytes", facts(&ModelFacts::block_bytes), "per cache group: bytes of a block over its layers");
  add("group_windows", facts(&ModelFacts::group_windows), "per cache group: its window, 0 if none");
  add("group_chunked", facts(&ModelFacts::group_chunked),
      "per cache group: 1 if its window is chunked, 0 if it slides; []: all slide");
  add("group_sink_tokens", facts(&ModelFacts::group_sink_tokens),
      "per cache group: first positions that are seen besides its window; []: none");
  add("state_bytes", facts(&ModelFacts::state_bytes), "states of a sequence, 0 without recurrent layers");
  add("sparse_prefill", facts(&ModelFacts::sparse_prefill),
      "the most positions that a row of a prompt sees where rows choose; 0: all");
  add("chunk_multiple", facts(&ModelFacts::chunk_multiple),
      "the positions at whose multiples chunks of prompts end; 0: anywhere");
  add("kv_cache_bytes", engine(&EngineOptions::kv_cache_bytes), "as EngineOptions', of each replica");
  add("max_batch_size", engine(&EngineOptions::max_batch_size), "as EngineOptions'");
  add("max_num_tokens", engine(&EngineOptions::max_num_tokens), "as EngineOptions'");
  add("max_chunk", engine(&EngineOptions::max_chunk), "as EngineOptions'");
  add("itl_goal_s", engine(&EngineOptions::itl_goal_s), "as EngineOptions'");
  add("ageing_s", engine(&EngineOptions::ageing_s), "as EngineOptions'");
  add("max_queue", engine(&EngineOptions::max_queue), "as EngineOptions'");
  add("prefix_cache", engine(&EngineOptions::prefix_cache), "as EngineOptions'");
  add("state_snapshots", engine(&EngineOptions::state_snapshots), "as EngineOptions'");
  add("sizes", prices(&StepPrices::sizes), "tokens of steps, ascending, from 1 on");
  add("seconds", prices(&StepPrices::seconds), "per size: seconds of a step without what follows");
  add("pair_seconds", prices(&StepPrices::pair_seconds), "of a token and a position that it attends to");
  add("context_seconds", prices(&StepPrices::context_seconds), "of a position that a sequence reads");
  add("spread", prices(&StepPrices::spread),
      "factors of a step's time, one of which is drawn for each step; []: 1");
  add("row_seconds", prices(&StepPrices::row_seconds), "of a row of logits");
  add("sequence_seconds", prices(&StepPrices::sequence_seconds), "of a sequence");
}

}  // namespace

void bind_simulation(nb::module_& m) {
  using namespace nb::literals;
  bind_simulation_options(m);
  nb::class_<PyTenants>(m, "SimulatedTenants", "What tenants have, by their numbers.")
      .def(nb::init<std::vector<double>, std::vector<int32_t>, std::vector<double>>(), "weights"_a,
           "priorities"_a, "deadlines"_a, "deadlines: seconds from a request's arrival, -1 for none.");
  nb::class_<PyFleet>(m, "SimulatedFleet", "Engines on a virtual clock, whose steps only cost time.")
      .def(nb::init<const PyFleetOptions&>(), "options"_a, "Raises InvalidOptionError, OutOfMemoryError.")
      .def("run", &PyFleet::run, "arrivals"_a, "prompts"_a, "outputs"_a, "prefixes"_a, "prefix_tokens"_a,
           "conversations"_a, "tenants"_a, "table"_a, "choose"_a, "finished"_a,
           "Runs the requests to their ends, once. Columns [requests]: int64 nanoseconds, ascending; int32 "
           "tokens of prompts and of outputs; int32 numbers of common beginnings and how many tokens of the "
           "prompt they are; int32 numbers of conversations, whose prompts have the same tokens behind that; "
           "int32 numbers of tenants, which are in the table unless that is empty. "
           "choose(request) returns the number of a replica; finished(request) hears of its "
           "end. Raises InvalidOptionError, PromptTooLongError, and what the functions raise.")
      .def(
          "outcomes", &PyFleet::outcomes,
          "Columns [requests]: replica (-1: refused), started, first, ended (nanoseconds, -1: never), cached "
          "(tokens), generated, gap (seconds), late (1: it ended because it could not meet its deadline).")
      .def("gaps", &PyFleet::gaps,
           "The times between tokens of all requests: seconds and counts of bins that are 0.5 % wide, count, "
           "sum, max.")
      .def("replicas", &PyFleet::replicas, "Per replica: sums, and means over the time in which it computed.")
      .def("steps", &PyFleet::steps, "With keep_steps: as Engine.timeline.");
}

}  // namespace tensorwright
