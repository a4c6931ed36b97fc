// Checks that the operands and attributes of every instruction keep the rules of its op, which are in
// plugins/<op>/instruction.cc.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_

#include "runtime/core/plan/plan.h"

namespace tensorwright {

// The buffer, weight, KV layer and state records must be sound. Throws Error{"EngineError"} that names the
// instruction and the operand.
void check_instructions(const Plan& plan);

// Returns the row of an op by its number, or null if there is no such op.
const OpRow* find_op(uint32_t op);

// Returns whether out[`out`] may be written over in[`in`], where both have the same place.
bool may_share(const Instruction& instruction, int in, int out);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
