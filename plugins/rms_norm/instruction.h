// What the instructions of all norms share: their checks, and the residual that may be added first.
#ifndef TENSORWRIGHT_PLUGINS_RMS_NORM_INSTRUCTION_H_
#define TENSORWRIGHT_PLUGINS_RMS_NORM_INSTRUCTION_H_

#include <cstdint>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

// Checks the floats of every norm: eps and weight_offset.
void require_norm_floats(const InstructionCheck& c);

// Checks what all norms of whole rows share, with or without a residual that is added first.
void require_norm(const InstructionCheck& c);

// The operand `residual` and the result `sum` of a norm that adds them first. Both may be absent.
class ResidualSum {
 public:
  ResidualSum(const Instruction& instruction, const OpContext& context) : present_(instruction.in[1] >= 0) {
    if (!present_) return;
    residual_ = context.buffer(instruction.in[1]);
    sum_ = context.buffer(instruction.out[1]);
  }

  // Returns the bytes of a row of both.
  int64_t row_bytes() const { return present_ ? residual_.row_bytes() + sum_.row_bytes() : 0; }

  // Sets the arguments of a kernel that begins at row `begin`.
  template <typename Args>
  void set(const StepView& view, int32_t begin, Args* args) const {
    if (!present_) return;
    args->residual = residual_.floats(view, begin);
    args->residual_stride = residual_.stride;
    args->sum = sum_.floats(view, begin);
    args->sum_stride = sum_.stride;
  }

 private:
  bool present_;
  BufferRef residual_, sum_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_RMS_NORM_INSTRUCTION_H_
