// elementwise: y = program(x0 .. x3, w). The program is in the instruction: ints hold its bytes, floats its
// constants.
#include <cstring>

#include "plugins/elementwise/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class Elementwise : public Operation {
 public:
  Elementwise(const Instruction& instruction, const OpContext& context)
      : y_(context.buffer(instruction.out[0])),
        w_(context.weight_floats(instruction.weight[0])),
        kernel_(choose("elementwise", elementwise_kernels(), context.isa)) {
    static_assert(sizeof instruction.ints == TW_EW_BYTES && sizeof instruction.floats == sizeof constants_);
    std::memcpy(code_, instruction.ints, sizeof code_);
    std::memcpy(constants_, instruction.floats, sizeof constants_);
    for (; inputs_ < TW_EW_INPUTS && instruction.in[inputs_] >= 0; ++inputs_) {
      x_[inputs_] = context.buffer(instruction.in[inputs_]);
    }
  }

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), int64_t{kWork} * y_.cols, [&](int32_t begin, int32_t end) {
      tw_elementwise_args args{};
      args.rows = end - begin;
      args.width = y_.cols;
      args.code = code_;
      args.constants = constants_;
      for (int i = 0; i < inputs_; ++i) {
        args.x[i] = x_[i].floats(view, begin);
        args.x_stride[i] = x_[i].stride;
      }
      args.w = w_;
      args.y_dtype = y_.dtype;
      args.y = y_.at(view, begin);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    return {rows * (inputs_ * y_.cols * int64_t{4} + y_.row_bytes()), rows * y_.cols * kWork};
  }

 private:
  static constexpr int kWork = 4;  // a program costs about as much as this many plain operations

  BufferRef x_[TW_EW_INPUTS], y_;
  int inputs_ = 0;
  const float* w_;
  uint8_t code_[TW_EW_BYTES];
  float constants_[TW_EW_CONSTANTS];
  tw_elementwise_fn kernel_;
};

// Checks what the stack machine needs: operands that are present, a stack that neither underflows nor
// overflows, and one result.
void check_program(const InstructionCheck& c) {
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

}  // namespace

void check_elementwise(const InstructionCheck& c) {
  c.require_same_kind();
  for (int i = 0; i < TW_EW_INPUTS; ++i) {
    c.require_float32("every input", c.in(i));
    c.require_cols("every input", c.in(i), c.out(0)->cols);
    c.require(i == 0 || !c.in(i) || c.in(i - 1), "in[", i, "] needs in[", i - 1, "]");
    c.require_finite("every constant", c.instruction.floats[i]);
  }
  c.require_raw("w", c.weight(0), c.out(0)->cols);
  check_program(c);
}

std::unique_ptr<Operation> make_elementwise(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Elementwise>(instruction, context);
}

}  // namespace tensorwright
