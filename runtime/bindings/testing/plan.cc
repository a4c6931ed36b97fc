// The plan reader's table of instructions in Python, for tests.
#include <nanobind/nanobind.h>

#include "runtime/bindings/kernel_bindings.h"
#include "runtime/core/plan/plan_check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// Returns what the reader of plans knows of each op. Tests compare the builder's tables with it.
nb::list plan_ops() {
  nb::list ops;
  for (const OpRow& a : kOpTable) {
    nb::dict op;
    op["number"] = static_cast<uint32_t>(a.op);
    op["name"] = a.name;
    op["ins"] = nb::make_tuple(a.ins_required, a.ins);
    op["weights"] = nb::make_tuple(a.weights_required, a.weights);
    op["outs"] = nb::make_tuple(a.outs_required, a.outs);
    op["ints"] = a.ints;
    op["floats"] = a.floats;
    ops.append(op);
  }
  return ops;
}

bool plan_may_share(uint32_t op, int operands, int in, int out) {
  Instruction instruction = {};
  instruction.op = op;
  for (int i = 0; i < 4; ++i) instruction.in[i] = i < operands ? i : -1;
  return may_share(instruction, in, out);
}

void bind(nb::module_& m) {
  m.def("plan_ops", plan_ops,
        "Per op of plan.bin: number, name, (required, most) ins, weights and outs, ints and floats.");
  m.def("plan_may_share", plan_may_share, "op"_a, "operands"_a, "operand"_a, "result"_a,
        "Whether an instruction with that many ins may write the result over the operand.");
}

const RegisteredBindings registered(&bind);

}  // namespace
}  // namespace tensorwright
