// The rules that an instruction's operands and attributes must keep, op by op.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_

#include <vector>

#include "runtime/core/plan/plan.h"

namespace tensorwright {

// Needs sound buffer, weight and KV layer records. Throws Error{"EngineError"} that names instruction and
// operand.
void check_instructions(const Plan& plan);

// How many operands and attributes an op takes: of ins, weights and outs the required ones come first.
struct OpArity {
  uint32_t op;
  const char* name;
  int ins_required, ins, weights_required, weights, outs_required, outs, ints, floats;
};
std::vector<OpArity> op_arities();

// Whether out[`out`] may be written to the memory of in[`in`], where both have the same place.
bool may_share(const Instruction& instruction, int in, int out);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
