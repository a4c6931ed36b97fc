// CpuExecutor in Python: one step at a time, for build-time accuracy, tests and profiles. The GIL is free
// while it runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <mutex>

#include "runtime/bindings/bindings.h"
#include "runtime/core/concat.h"
#include "runtime/core/cpu_executor.h"
#include "runtime/core/error.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

using Ints = std::vector<int32_t>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// An int32 array at one go, else a sequence of ints. Anything else raises TypeError.
Ints to_ints(nb::handle object) {
  nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(object, array, false)) return Ints(array.data(), array.data() + array.size());
  const nb::object list = nb::hasattr(object, "tolist") ? object.attr("tolist")() : nb::borrow(object);
  Ints ints;
  if (!nb::try_cast(list, ints)) throw nb::type_error("step: every array must hold 32-bit ints");
  return ints;
}

LoadMode load_mode(const std::string& name) {
  if (name == "map") return LoadMode::map;
  if (name == "copy") return LoadMode::copy;
  throw Error("InvalidOptionError", concat("load must be 'map' or 'copy', is '", name, "'"));
}

// The executor and a lock: Python may call from any thread, the executor takes one at a time.
class PyCpuExecutor {
 public:
  PyCpuExecutor(const std::string& plan, const std::string& weights, int threads, const std::string& load)
      : executor_(plan, weights, {threads, load_mode(load)}) {}

  nb::dict facts() const {
    const ModelFacts& facts = executor_.facts();
    nb::dict result;
    result["vocab_size"] = facts.vocab_size;
    result["max_seq_len"] = facts.max_seq_len;
    result["block_size"] = facts.block_size;
    result["block_bytes"] = facts.block_bytes;
    result["group_windows"] = facts.group_windows;
    result["threads"] = executor_.threads();
    return result;
  }

  void allocate(const Ints& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    executor_.allocate(blocks, max_tokens, max_rows, max_seqs);
  }

  Logits step(nb::handle token_ids, nb::handle positions, nb::handle seq_starts, nb::handle context_lens,
              nb::handle logit_rows, const std::vector<std::tuple<Table, nb::object>>& groups) {
    Step step{to_ints(token_ids),    to_ints(positions),  to_ints(seq_starts),
              to_ints(context_lens), to_ints(logit_rows), {}};
    for (const auto& [table, slots] : groups) {
      if (table.shape(0) != step.context_lens.size()) {
        throw Error("InvalidRequestError", concat("step: block_tables must have ", step.context_lens.size(),
                                                  " rows, has ", table.shape(0)));
      }
      const int32_t* data = table.data();
      step.groups.push_back(
          {static_cast<int32_t>(table.shape(1)), Ints(data, data + table.size()), to_ints(slots)});
    }
    const auto vocab = static_cast<size_t>(executor_.facts().vocab_size);
    std::unique_ptr<float[]> copy;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      const LogitRows rows = executor_.wait(executor_.enqueue(step));
      copy = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows.rows) * vocab);
      for (int32_t row = 0; row < rows.rows; ++row) {
        std::memcpy(copy.get() + static_cast<size_t>(row) * vocab, rows.data + row * rows.stride,
                    vocab * sizeof(float));
      }
    }
    float* data = copy.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Logits(data, {step.logit_rows.size(), vocab}, owner);
  }

  void copy_block(int32_t group, int32_t from, int32_t to) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    executor_.copy_block(group, from, to);
  }

  void profile(bool enable) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    executor_.profile().enable(enable);
  }

  nb::list profile_table() {
    std::vector<ProfileRow> rows;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      rows = executor_.profile().rows();
    }
    nb::list table;
    for (const ProfileRow& row : rows) {
      nb::dict entry;
      entry["name"] = row.name;
      entry["op"] = row.op;
      entry["calls"] = row.calls;
      entry["ns"] = row.nanoseconds;
      entry["bytes"] = row.cost.bytes;
      entry["ops"] = row.cost.operations;
      table.append(entry);
    }
    return table;
  }

  nb::list dispatch() const {
    nb::list table;
    for (const DispatchChoice& choice : executor_.dispatch()) {
      nb::dict entry;
      entry["family"] = choice.family;
      entry["taken"] = choice.taken;
      entry["refused"] = choice.refused;
      table.append(entry);
    }
    return table;
  }

 private:
  std::mutex mutex_;
  CpuExecutor executor_;
};

}  // namespace

void bind_executor(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyCpuExecutor>(m, "CpuExecutor",
                            "Runs the plan of a cpu engine, one step of a ragged batch at a time.")
      .def(nb::init<const std::string&, const std::string&, int, const std::string&>(), "plan_path"_a,
           "weights_path"_a, "threads"_a = 0, "load"_a = "map",
           "threads: 0 is one per usable processor; load: 'map' or 'copy'. Raises EngineError.")
      .def("facts", &PyCpuExecutor::facts, "vocab_size, max_seq_len, block_size, block_bytes and more.")
      .def("allocate", &PyCpuExecutor::allocate, "blocks"_a, "max_tokens"_a, "max_rows"_a, "max_seqs"_a,
           "Makes room, once: blocks is a list with one count per cache group.")
      .def("step", &PyCpuExecutor::step, "token_ids"_a, "positions"_a, "seq_starts"_a, "context_lens"_a,
           "logit_rows"_a, "groups"_a,
           "Runs a step; arguments are int32 arrays or lists, groups is [(block_tables int32 [seqs, "
           "max_blocks], slots "
           "[tokens])]. Returns float32 "
           "[rows, vocab]. Raises InvalidRequestError, with nothing done, if the step is malformed.")
      .def("copy_block", &PyCpuExecutor::copy_block, "group"_a, "source"_a, "target"_a,
           "Copies one KV block in all layers of a cache group.")
      .def("profile", &PyCpuExecutor::profile, "enable"_a, "Turns profiling on, from zero, or off.")
      .def("profile_table", &PyCpuExecutor::profile_table,
           "Per instruction: name, op, calls, ns, bytes (moved at least), ops (arithmetic).")
      .def("dispatch", &PyCpuExecutor::dispatch,
           "Per kernel family: the kernel taken, and why better ones were not.");
}

}  // namespace tensorwright
