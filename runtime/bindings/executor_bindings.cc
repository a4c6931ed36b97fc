// CpuExecutor in Python: one step at a time, for build-time accuracy, tests and profiles. The GIL is free
// while a step runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>
#include <mutex>

#include "runtime/bindings/bindings.h"
#include "runtime/bindings/rank_options.h"
#include "runtime/bindings/steps.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/executor/cpu_executor.h"
#include "runtime/core/rows/logit_row.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

using Features = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// An executor with a lock, because Python may call from any thread and the executor takes one call at a time.
class PyCpuExecutor {
 public:
  PyCpuExecutor(const std::string& plan, const std::string& weights, int threads, const std::string& load,
                const RankOptions* ranks)
      : PyCpuExecutor(plan, weights, options_of(threads, load, ranks), ranks ? *ranks : RankOptions()) {}

  Facts facts() const {
    const ModelFacts& facts = lead_->facts();
    Facts result;
    result["vocab_size"] = facts.vocab_size;
    result["max_seq_len"] = facts.max_seq_len;
    result["block_size"] = facts.block_size;
    result["block_bytes"] = facts.block_bytes;
    result["group_windows"] = facts.group_windows;
    result["state_bytes"] = facts.state_bytes;
    result["chunk_stop"] = facts.chunk_stop();
    result["sparse_prefill"] = facts.sparse_prefill;
    result["draft_width"] = facts.draft_width;
    result["draft_vocab"] = facts.draft_vocab;
    result["hidden_width"] = facts.hidden_width;
    result["threads"] = cpu_->threads();
    return result;
  }

  void allocate(const Ints& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    lead_->allocate(blocks, max_tokens, max_rows, max_seqs, state_slots);
  }

  std::vector<int> gone_blocks(int32_t group, int32_t slot) {
    const std::lock_guard lock(mutex_);
    const std::span<const uint8_t> gone = lead_->gone_blocks(group, slot);
    return {gone.begin(), gone.end()};
  }

  Logits step(nb::handle token_ids, nb::handle positions, nb::handle seq_starts, nb::handle context_lens,
              nb::handle logit_rows, const Groups& groups, nb::handle state_slots, nb::handle prompt_lens) {
    const Step step =
        to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, state_slots, prompt_lens);
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const LogitRows rows = lead_->run(step);
    std::unique_ptr<float[]> copy = rows_of(rows.data, rows.stride, rows.rows, cpu_->facts().columns());
    const nb::gil_scoped_acquire acquire;
    return owned(std::move(copy), rows.rows, cpu_->facts().columns());
  }

  // Runs a step as step() does. Returns the features of its tokens beside the logits.
  std::tuple<Logits, Logits> step_with_features(nb::handle token_ids, nb::handle positions,
                                                nb::handle seq_starts, nb::handle context_lens,
                                                nb::handle logit_rows, const Groups& groups,
                                                nb::handle state_slots) {
    const Step step =
        to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, state_slots);
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    cpu_->want_features(true);
    const LogitRows rows = lead_->run(step);
    cpu_->want_features(false);
    const FeatureRows features = cpu_->features();
    const int32_t width = cpu_->facts().draft_width;
    const nb::gil_scoped_acquire acquire;
    return {copied(rows.data, rows.stride, rows.rows, cpu_->facts().vocab_size),
            copied(features.data, features.stride, width > 0 ? step.tokens() : 0, width)};
  }

  // Runs a step of heads. Returns their logits and their own features.
  std::tuple<Logits, Logits> draft_step(nb::handle token_ids, nb::handle positions, nb::handle seq_starts,
                                        nb::handle context_lens, nb::handle logit_rows, const Groups& groups,
                                        const Features& features) {
    const Step step =
        to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, nb::tuple());
    const ModelFacts& facts = cpu_->facts();
    const bool fits = features.shape(0) == step.token_ids.size() &&
                      features.shape(1) == static_cast<size_t>(facts.draft_width);
    if (!fits) {
      throw Error("InvalidRequestError",
                  concat("draft_step: features must be [", step.token_ids.size(), ", ", facts.draft_width,
                         "], are [", features.shape(0), ", ", features.shape(1), "]"));
    }
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const DraftRows rows = cpu_->run_draft(step, features.data());
    const nb::gil_scoped_acquire acquire;
    return {copied(rows.logits.data, rows.logits.stride, rows.logits.rows, facts.draft_vocab),
            copied(rows.features.data, rows.features.stride, rows.logits.rows, facts.draft_width)};
  }

  // Runs a step as step() does, but returns only the logprob of one token per row, so nothing as large as the
  // logits is copied.
  std::vector<double> score(nb::handle token_ids, nb::handle positions, nb::handle seq_starts,
                            nb::handle context_lens, nb::handle logit_rows, const Groups& groups,
                            nb::handle targets, nb::handle state_slots, nb::handle prompt_lens) {
    const Step step =
        to_step(token_ids, positions, seq_starts, context_lens, logit_rows, groups, state_slots, prompt_lens);
    const Ints wanted = to_ints(targets);
    check_targets(wanted, step.logit_rows.size());
    const auto vocab = static_cast<size_t>(cpu_->facts().vocab_size);
    std::vector<double> logprobs(wanted.size());
    std::vector<std::exception_ptr> errors(wanted.size());
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const LogitRows rows = lead_->run(step);
    cpu_->run_tasks(rows.rows, [&](int row, int) {
      const auto i = static_cast<size_t>(row);
      try {
        logprobs[i] = logprob({rows.data + row * rows.stride, vocab}, wanted[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    return logprobs;
  }

  void copy_block(int32_t group, int32_t from, int32_t to) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    lead_->copy_block(group, from, to);
  }

  void copy_state(int32_t from, int32_t to) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    lead_->copy_state(from, to);
  }

  void enable_profile(bool enable) { cpu_->profile().enable(enable); }

  void set_work_cut(const WorkCutValues& values) {
    const std::lock_guard lock(mutex_);
    cpu_->team()->set_cut(work_cut(values));
  }

  const Profile& profile() { return cpu_->profile(); }

  Facts weight_reads() const {
    const WeightReads reads = cpu_->weight_reads();
    FactsList mixtures;
    for (const Mixture& mixture : reads.mixtures) {
      nb::dict entry;
      entry["module"] = mixture.name;
      entry["experts"] = mixture.use.experts;
      entry["taken"] = mixture.use.slots;
      entry["bytes_of_one"] = mixture.use.bytes;
      mixtures.append(entry);
    }
    Facts facts;
    facts["bytes"] = reads.bytes;
    facts["mixtures"] = mixtures;
    return facts;
  }

  FactsList dispatch() const {
    FactsList table;
    for (const DispatchChoice& choice : cpu_->dispatch()) {
      nb::dict entry;
      entry["family"] = choice.family;
      entry["taken"] = choice.taken;
      entry["refused"] = choice.refused;
      table.append(entry);
    }
    return table;
  }

 private:
  void check_targets(const Ints& targets, size_t rows) const {
    if (targets.size() != rows) {
      throw Error("InvalidRequestError",
                  concat("score: targets must have ", rows, " entries, has ", targets.size()));
    }
    const int32_t vocab = cpu_->facts().vocab_size;
    for (int32_t target : targets) {
      if (target >= 0 && target < vocab) continue;
      throw Error("InvalidRequestError",
                  concat("score: targets must be 0 to ", vocab - 1, ", one is ", target));
    }
  }

  static CpuExecutorOptions options_of(int threads, const std::string& load, const RankOptions* ranks) {
    CpuExecutorOptions options{threads, load_mode(load)};
    if (ranks) options.place = ranks->place();
    return options;
  }
  PyCpuExecutor(const std::string& plan, const std::string& weights, const CpuExecutorOptions& options,
                const RankOptions& ranks) {
    auto cpu = std::make_unique<CpuExecutor>(plan, weights, options);
    cpu_ = cpu.get();
    const nb::gil_scoped_release release;
    lead_ = lead_ranks(std::move(cpu), ranks);
  }

  std::mutex mutex_;
  std::unique_ptr<Executor> lead_;  // the executor itself, or that of rank 0 which leads the others
  CpuExecutor* cpu_;                // belongs to it
};

}  // namespace

WorkCutValues work_cut_values(const WorkCut& cut) {
  WorkCutValues values;
  for (const WorkCutField& field : kWorkCutFields) values[field.name] = cut.*(field.field);
  return values;
}

WorkCut work_cut(const WorkCutValues& values) {
  WorkCut cut;
  for (const auto& [name, value] : values) {
    const auto* found = std::ranges::find(kWorkCutFields, name, &WorkCutField::name);
    if (found == std::end(kWorkCutFields))
      throw Error("InvalidOptionError", concat("work_cut has no '", name, "'"));
    if (value < found->least || value > found->most) {
      throw Error("InvalidOptionError",
                  concat("work_cut: ", name, " must be ", found->least, " to ", found->most, ", is ", value));
    }
    cut.*(found->field) = value;
  }
  return cut;
}

void bind_executor(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyCpuExecutor>(m, "CpuExecutor",
                            "Runs the plan of a cpu engine, one step of a ragged batch at a time.")
      .def(nb::init<const std::string&, const std::string&, int, const std::string&, const RankOptions*>(),
           "plan_path"_a, "weights_path"_a, "threads"_a = 0, "load"_a = "map", "ranks"_a.none() = nb::none(),
           "threads: 0 is one per usable processor; load: 'map' or 'copy'; ranks: the others of a parallel "
           "engine, whose rank 0 this is. Raises EngineError, RankError.")
      .def("facts", &PyCpuExecutor::facts, "vocab_size, max_seq_len, block_size, block_bytes and more.")
      .def("gone_blocks", &PyCpuExecutor::gone_blocks, "group"_a, "slot"_a,
           "Of a group with a budget: 1 for each block that the sequence of a state slot has forgotten.")
      .def("allocate", &PyCpuExecutor::allocate, "blocks"_a, "max_tokens"_a, "max_rows"_a, "max_seqs"_a,
           "state_slots"_a = 0,
           "Makes room, once: blocks is a list with one count per cache group; state_slots is 0 unless "
           "facts() has "
           "state_bytes.")
      .def("step", &PyCpuExecutor::step, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a, "state_slots"_a = nb::tuple(), "prompt_lens"_a = nb::tuple(),
           "Runs a step; arguments are int32 arrays or lists, groups is [(block_tables int32 [seqs, "
           "max_blocks], slots "
           "[tokens])], state_slots is [seqs] if the model has states, prompt_lens is [seqs] if facts() has "
           "sparse_prefill; without it no row chooses what it sees. Returns float32 "
           "[rows, vocab]. Raises InvalidRequestError, with nothing done, if the step is malformed.")
      .def("step_with_features", &PyCpuExecutor::step_with_features, "token_ids"_a, "positions"_a,
           "seq_starts"_a, "context_lens"_a, "logit_rows"_a, "groups"_a, "state_slots"_a = nb::tuple(),
           "Runs a step as step does. Returns its result, and the features of all tokens, float32 [tokens, "
           "draft_width].")
      .def(
          "draft_step", &PyCpuExecutor::draft_step, "token_ids"_a, "positions"_a, "seq_starts"_a,
          "context_lens"_a, "logit_rows"_a, "groups"_a, "features"_a,
          "Runs a step of the engine's heads, each token with the feature of the position before it, float32 "
          "[tokens, draft_width]. Returns float32 [rows, draft_vocab], and their own features [rows, "
          "draft_width]. Raises InvalidRequestError as step does.")
      .def("score", &PyCpuExecutor::score, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a, "targets"_a, "state_slots"_a = nb::tuple(),
           "prompt_lens"_a = nb::tuple(),
           "Runs a step and returns, for each logit row, the natural logarithm of the probability of its "
           "target, a list of "
           "floats. Raises InvalidRequestError as step does, NumericalError if a row holds no distribution.")
      .def("copy_block", &PyCpuExecutor::copy_block, "group"_a, "source"_a, "target"_a,
           "Copies one KV block in all layers of a cache group.")
      .def("copy_state", &PyCpuExecutor::copy_state, "source"_a, "target"_a,
           "Copies the states of all recurrent layers from one slot to another.")
      .def(
          "set_work_cut", &PyCpuExecutor::set_work_cut, "values"_a,
          "Cuts the products of the next steps by these sizes, by name; see base/work_cut.h. Results are the "
          "same. Raises InvalidOptionError.")
      .def("profile", &PyCpuExecutor::enable_profile, "enable"_a, "Turns profiling on, from zero, or off.")
      .def(
          "profile_table",
          [](PyCpuExecutor& self, const std::string& phase) { return profile_table(self.profile(), phase); },
          "phase"_a = "",
          "Per instruction: name, op, arithmetic, calls, ns, bytes (moved at least), ops (arithmetic), and "
          "with experts "
          "expert_rows, how many rows took each. phase: of steps "
          "in "
          "which sequences have several tokens (prefill), one (decode), or some of either (mixed).")
      .def(
          "profile_steps", [](PyCpuExecutor& self) { return profile_steps(self.profile()); },
          "Per phase: steps, tokens, sequences, rows, ns.")
      .def("weight_reads", &PyCpuExecutor::weight_reads,
           "Of a step of one token: bytes of weights that it reads; and mixtures, for each layer of experts "
           "its "
           "module, experts, taken (by a token) and bytes_of_one.")
      .def("dispatch", &PyCpuExecutor::dispatch,
           "Per kernel family: the kernel taken, and why better ones were not.");
}

}  // namespace tensorwright
