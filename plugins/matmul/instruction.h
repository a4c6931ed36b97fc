// What the instructions of matrix products have in common, float and quantized.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_

#include <cstdint>

#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

// Checks all but x and w; returns how many panels w must have: ceil(n / 16), twice that if the epilogue is
// gated. A bias has as many floats as w has rows, in panel order.
uint64_t check_product(const InstructionCheck& c);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
