// The checks that the instructions of float and quantized matrix products share.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_

#include <cstdint>

#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

// Checks all operands but x and w. Returns how many panels w must have: ceil(n / 16), or twice that if the
// epilogue is gated. A bias has as many floats as w has rows, in panel order.
uint64_t check_product(const InstructionCheck& c);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
