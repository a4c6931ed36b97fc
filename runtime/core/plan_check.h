// The rules that an instruction's operands and attributes must keep, op by op.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_

#include "runtime/core/plan.h"

namespace tensorwright {

// Needs sound buffer, weight and KV layer records. Throws Error{"EngineError"} that names instruction and
// operand.
void check_instructions(const Plan& plan);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_CHECK_H_
