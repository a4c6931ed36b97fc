// PlanCosts in Python: what the steps of a plan cost, without its weights.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "runtime/bindings/bindings.h"
#include "runtime/core/executor/plan_costs.h"

namespace nb = nanobind;

namespace tensorwright {
namespace {

std::span<const std::byte> bytes_of(const nb::bytes& data) {
  return {static_cast<const std::byte*>(data.data()), data.size()};
}

FactsList costs_of(const PlanCosts& self, const std::vector<std::tuple<int32_t, int32_t>>& sequences,
                   int32_t rows) {
  std::vector<SequenceShape> shapes;
  for (const auto& [tokens, context] : sequences) shapes.push_back({tokens, context});
  FactsList table;
  for (const InstructionCost& cost : self.step(shapes, rows)) {
    nb::dict entry;
    entry["name"] = cost.name;
    entry["op"] = cost.op;
    entry["arithmetic"] = cost.arithmetic;
    entry["bytes"] = cost.cost.bytes;
    entry["ops"] = cost.cost.operations;
    entry["weight_bytes"] = cost.weight_bytes;
    entry["weight_dtype"] = cost.weight_dtype;
    entry["weight_group"] = cost.weight_group;
    entry["size"] = cost.size;
    table.append(entry);
  }
  return table;
}

Facts facts_of(const PlanCosts& self) {
  const ModelFacts model = self.plan().facts();
  Facts facts;
  facts["weights_bytes"] = self.plan().header.weights_bytes;
  facts["block_size"] = model.block_size;
  facts["block_bytes"] = model.block_bytes;
  facts["group_windows"] = model.group_windows;
  facts["state_bytes"] = model.state_bytes;
  facts["max_seq_len"] = model.max_seq_len;
  return facts;
}

FactsList buffers_of(const PlanCosts& self) {
  FactsList table;
  for (const BufferUse& use : self.buffers()) {
    nb::dict entry;
    entry["maker"] = use.maker;
    entry["of_rows"] = use.of_rows;
    entry["offset"] = use.offset;
    entry["bytes"] = use.bytes;
    entry["first"] = use.first;
    entry["last"] = use.last;
    table.append(entry);
  }
  return table;
}

Facts memory_of(PlanCosts& self, int32_t tokens, int32_t rows, int32_t sequences, int threads) {
  const int32_t slots = self.plan().facts().state_bytes > 0 ? sequences : 0;
  const StepMemory memory = self.memory({tokens, rows, sequences, slots}, threads);
  Facts facts;
  facts["activations"] = memory.activations;
  facts["scratch"] = memory.scratch;
  return facts;
}

}  // namespace

void bind_plan(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PlanCosts>(m, "PlanCosts", "What the steps of a plan of target cpu cost, without its weights.")
      .def(
          "__init__", [](PlanCosts* self, const nb::bytes& plan) { new (self) PlanCosts(bytes_of(plan)); },
          "plan"_a, "plan: the bytes of plan.bin. Raises EngineError.")
      .def("step", &costs_of, "sequences"_a, "rows"_a,
           "Per instruction of a step: name, op, arithmetic (the type whose peak bounds it), bytes (moved at "
           "least), ops (arithmetic), weight_bytes, weight_dtype (-1: no matrix), weight_group, size (rows, "
           "or the context). "
           "sequences: (tokens of the step, positions after it) of each; rows: how many tokens get logits. "
           "Raises InvalidRequestError.")
      .def("facts", &facts_of,
           "weights_bytes; block_size; per cache group block_bytes and group_windows; state_bytes; "
           "max_seq_len.")
      .def("buffers", &buffers_of,
           "Per buffer: maker (op and module), of_rows (of logits, else of tokens), offset and bytes for one "
           "of "
           "them, first and last (instructions that use it).")
      .def("memory", &memory_of, "tokens"_a, "rows"_a, "sequences"_a, "threads"_a,
           "The bytes that steps up to these limits take: activations, scratch.");
}

}  // namespace tensorwright
