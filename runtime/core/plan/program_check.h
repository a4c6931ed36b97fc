// The check of an elementwise instruction's program, before anything runs it.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROGRAM_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROGRAM_CHECK_H_

#include <cstring>

#include "plugins/elementwise/kernel.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

// What the stack machine needs: operands that are there, a stack that neither runs dry nor over, one result.
inline void check_program(const InstructionCheck& c) {
  uint8_t code[TW_EW_BYTES];
  std::memcpy(code, c.instruction.ints, sizeof code);
  int depth = 0, length = 0;
  for (; length < TW_EW_BYTES && code[length] != TW_EW_END; ++length) {
    const int byte = code[length];
    c.require(tw_ew_is_operand(byte) || tw_ew_is_binary(byte) || tw_ew_is_unary(byte), "program byte ",
              length, " is ", byte, ", which is no code");
    const bool is_input = byte >= TW_EW_X0 && byte <= TW_EW_X3;
    c.require(!is_input || c.in(byte - TW_EW_X0), "program byte ", length, " reads an absent input");
    c.require(byte != TW_EW_W || c.weight(0), "program byte ", length, " reads an absent w");
    const int taken = tw_ew_is_operand(byte) ? 0 : tw_ew_is_binary(byte) ? 2 : 1;
    c.require(depth >= taken, "program byte ", length, " takes ", taken, " of ", depth, " values");
    depth += 1 - taken;
    c.require(depth <= TW_EW_STACK, "the program's stack must hold at most ", TW_EW_STACK, " values");
  }
  c.require(depth == 1, "the program must leave one value, leaves ", depth);
  for (; length < TW_EW_BYTES; ++length) {
    c.require(code[length] == TW_EW_END, "program byte ", length, " must be 0 after the end");
  }
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROGRAM_CHECK_H_
