// The rules that an instruction's operands and attributes must keep, op by op: those of each op are in
// plugins/<op>/instruction.cc.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_

#include "runtime/core/plan/plan.h"

namespace tensorwright {

// Needs sound buffer, weight and KV layer records. Throws Error{"EngineError"} that names instruction and
// operand.
void check_instructions(const Plan& plan);

// The row of an op by its number; null if there is no such op.
const OpRow* find_op(uint32_t op);

// Whether out[`out`] may be written to the memory of in[`in`], where both have the same place.
bool may_share(const Instruction& instruction, int in, int out);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
