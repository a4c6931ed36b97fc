#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/cuda_executor.h"
#include "runtime/bindings/steps.h"
#include "runtime/core/base/error.h"
#include "runtime/core/cuda/driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

PyCudaExecutor::PyCudaExecutor(const std::string& plan, const std::string& weights, int device,
                               const std::vector<std::string>& cublaslt, bool graphs, int threads, bool draws,
                               bool ahead) {
  const nb::gil_scoped_release release;
  executor_ = std::make_unique<CudaExecutor>(
      plan, weights, CudaExecutorOptions{device, cublaslt, graphs, draws, ahead, threads});
}

CudaExecutor& PyCudaExecutor::get() const {
  if (executor_) return *executor_;
  throw Error("EngineStoppedError", "[cuda] the executor is closed, or an engine has taken it");
}

std::unique_ptr<CudaExecutor> PyCudaExecutor::take() {
  get();
  return std::move(executor_);
}

namespace {

Facts executor_facts(const PyCudaExecutor& self) {
  const CudaExecutor& executor = self.get();
  const ModelFacts& facts = executor.facts();
  Facts result;
  result["vocab_size"] = facts.vocab_size;
  result["max_seq_len"] = facts.max_seq_len;
  result["block_size"] = facts.block_size;
  result["block_bytes"] = facts.block_bytes;
  result["group_windows"] = facts.group_windows;
  result["state_bytes"] = facts.state_bytes;
  result["draft_vocab"] = facts.draft_vocab;
  result["draft_width"] = facts.draft_width;
  result["device"] = executor.device().name;
  result["sm"] = executor.device().sm;
  result["max_num_tokens"] = executor.plan().max_tokens;
  result["max_batch_size"] = executor.plan().max_seqs;
  result["max_rows"] = executor.plan().max_rows;
  return result;
}

Facts executor_counters(const PyCudaExecutor& self) {
  const CudaCounters& counters = self.get().counters();
  Facts result;
  result["eager"] = counters.eager;
  result["captured"] = counters.captured;
  result["replayed"] = counters.replayed;
  result["drawn"] = counters.drawn;
  result["undecided"] = counters.undecided;
  result["ahead"] = counters.ahead;
  result["head_steps"] = counters.head_steps;
  return result;
}

Logits run_step(PyCudaExecutor& self, nb::handle token_ids, nb::handle positions, nb::handle seq_starts,
                nb::handle context_lens, nb::handle logit_rows, const Groups& groups,
                nb::handle state_slots) {
  CudaExecutor& executor = self.get();
  const Step step = to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, state_slots);
  LogitRows rows;
  {
    const nb::gil_scoped_release release;
    executor.begin_thread();
    rows = executor.run(step);
  }
  return copied(rows.data, rows.stride, rows.rows, executor.facts().vocab_size);
}

// None, or temperature, top_k, top_p, min_p and the random number.
using PyDraw = std::optional<std::tuple<double, int32_t, double, double, double>>;

std::vector<RowDraw> to_draws(const std::vector<PyDraw>& draws) {
  std::vector<RowDraw> rows(draws.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    if (!draws[i]) continue;
    RowDraw& row = rows[i];
    std::tie(row.temperature, row.top_k, row.top_p, row.min_p, row.uniform) = *draws[i];
    row.wanted = true;
  }
  return rows;
}

std::vector<int32_t> tokens_of(const LogitRows& rows) {
  if (rows.tokens) return {rows.tokens, rows.tokens + rows.rows};
  return std::vector<int32_t>(static_cast<size_t>(rows.rows), -1);
}

std::pair<std::vector<int32_t>, Logits> draw_step(PyCudaExecutor& self, nb::handle token_ids,
                                                  nb::handle positions, nb::handle seq_starts,
                                                  nb::handle context_lens, nb::handle logit_rows,
                                                  const Groups& groups, const std::vector<PyDraw>& draws,
                                                  nb::handle state_slots) {
  CudaExecutor& executor = self.get();
  Step step = to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, state_slots);
  step.draws = to_draws(draws);
  LogitRows rows;
  {
    const nb::gil_scoped_release release;
    executor.begin_thread();
    rows = executor.run(step);
  }
  return {tokens_of(rows), copied(rows.data, rows.stride, rows.rows, executor.facts().vocab_size)};
}

// Runs a step of the heads, with the features that lie in the slots. Returns tokens and logits as draw_step()
// does.
std::pair<std::vector<int32_t>, Logits> draft_step(PyCudaExecutor& self, nb::handle token_ids,
                                                   nb::handle positions, nb::handle seq_starts,
                                                   nb::handle context_lens, nb::handle logit_rows,
                                                   const Groups& groups, const std::vector<PyDraw>& draws) {
  CudaExecutor& executor = self.get();
  Step step = to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, nb::tuple());
  step.draws = to_draws(draws);
  LogitRows rows;
  {
    const nb::gil_scoped_release release;
    executor.begin_thread();
    rows = executor.run_draft(step, nullptr).logits;
  }
  return {tokens_of(rows), copied(rows.data, rows.stride, rows.rows, executor.facts().draft_vocab)};
}

// Runs a step again and again. Returns the seconds of each run.
std::vector<double> step_seconds(PyCudaExecutor& self, nb::handle token_ids, nb::handle positions,
                                 nb::handle seq_starts, nb::handle context_lens, nb::handle logit_rows,
                                 const Groups& groups, int repeats, const std::vector<PyDraw>& draws) {
  CudaExecutor& executor = self.get();
  Step step = to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, nb::tuple());
  step.draws = to_draws(draws);
  const nb::gil_scoped_release release;
  executor.begin_thread();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    executor.run(step);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return seconds;
}

Facts device_facts(int device) {
  const DeviceFacts facts = Driver(device).facts();
  Facts result;
  result["name"] = facts.name;
  result["sm"] = facts.sm;
  result["multiprocessors"] = facts.multiprocessors;
  result["memory"] = facts.memory;
  return result;
}

}  // namespace

void bind_cuda(nb::module_& m) {
  m.def("cuda_device", &device_facts, "device"_a,
        "name, sm, multiprocessors and memory (bytes) of a GPU. Raises MissingDependencyError without a "
        "driver, "
        "InvalidOptionError without such a GPU.");
  nb::class_<PyCudaExecutor>(
      m, "CudaExecutor",
      "Opens an engine of target cuda on a GPU. An Engine takes it, or it runs a step at a "
      "time.")
      .def(
          nb::init<const std::string&, const std::string&, int, const std::vector<std::string>&, bool, int,
                   bool, bool>(),
          "plan_path"_a, "weights_path"_a, "device"_a, "cublaslt"_a, "graphs"_a = true, "threads"_a = 1,
          "draws"_a = true, "ahead"_a = true,
          "cublaslt: names of the library, of which the first that is there is taken. graphs: whether decode "
          "steps are "
          "replayed as CUDA graphs. draws: whether tokens are drawn on the GPU where that can be. ahead: "
          "whether a step may be started "
          "before the tokens of the last one are known, where the GPU draws them. threads: "
          "that draw tokens, 0 is one per usable processor. Raises "
          "EngineError, MissingDependencyError, OutOfMemoryError.")
      .def("facts", &executor_facts, "Facts of the model, the limits of a step, and the GPU's name and sm.")
      .def(
          "free_memory", [](const PyCudaExecutor& self) { return self.get().free_memory(); },
          "The bytes of the GPU that are free.")
      .def(
          "step_bytes",
          [](const PyCudaExecutor& self, int32_t tokens, int32_t rows, int32_t seqs) {
            return self.get().step_bytes(tokens, rows, seqs);
          },
          "max_tokens"_a, "max_rows"_a, "max_seqs"_a,
          "The bytes of the GPU that steps of these sizes take beside the cache.")
      .def(
          "allocate",
          [](PyCudaExecutor& self, const std::vector<int32_t>& blocks, int32_t tokens, int32_t rows,
             int32_t seqs,
             int32_t state_slots) { self.get().allocate(blocks, tokens, rows, seqs, state_slots); },
          "blocks"_a, "max_tokens"_a, "max_rows"_a, "max_seqs"_a, "state_slots"_a = 0,
          "Makes room, once: blocks is a list with one count per cache group, state_slots how many sequences "
          "have states.")
      .def("step", &run_step, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a, "logit_rows"_a,
           "groups"_a, "state_slots"_a = nb::tuple(),
           "Runs a step as CpuExecutor.step does. Returns float32 [rows, vocab]. One thread at a time.")
      .def("step_seconds", &step_seconds, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a, "repeats"_a, "draws"_a = std::vector<PyDraw>(),
           "Runs a step so many times, as step does, or draw_step with draws. Returns the seconds of each, "
           "its "
           "logits and tokens in the host's memory.")
      .def(
          "counters", &executor_counters,
          "How many steps ran without a graph (eager), were captured, and were replayed; of how many rows "
          "the "
          "tokens were drawn on the GPU (drawn), and left to the host after all (undecided); how many of the "
          "steps were of heads (head_steps), and were started while another one was underway (ahead).")
      .def("draw_step", &draw_step, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a, "draws"_a, "state_slots"_a = nb::tuple(),
           "Runs a step as step does, and draws tokens. draws: for each row of logits None, or (temperature, "
           "top_k, top_p, "
           "min_p, number in [0, 1)). Returns (int32 tokens, -1 for a row of logits; float32 [rows, vocab], "
           "whose "
           "rows with a token mean nothing).")
      .def(
          "want_features", [](PyCudaExecutor& self, bool wanted) { self.get().want_features(wanted); },
          "wanted"_a, "Whether the next steps write features for the heads into the slots of their tokens.")
      .def("draft_step", &draft_step, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a, "draws"_a = std::vector<PyDraw>(),
           "Runs a step of the engine's heads: each token is the one behind its position, whose feature lies "
           "in its slot. Returns tokens and float32 [rows, draft_vocab], as draw_step does. Raises "
           "InvalidRequestError as step does.")
      .def(
          "copy_block",
          [](PyCudaExecutor& self, int32_t group, int32_t source, int32_t target) {
            self.get().copy_block(group, source, target);
          },
          "group"_a, "source"_a, "target"_a, "Copies one KV block in all layers of a cache group.")
      .def(
          "copy_state",
          [](PyCudaExecutor& self, int32_t source, int32_t target) { self.get().copy_state(source, target); },
          "source"_a, "target"_a, "Copies the states of all recurrent layers from one slot to another.")
      .def("close", &PyCudaExecutor::close,
           "Frees the GPU's memory, unless an engine has taken the executor.");
}

}  // namespace tensorwright
