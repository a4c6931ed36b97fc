// swiglu: y = act(gate) * up, where x holds first gate and then up. (Mostly swiglu is an epilogue of matmul
// instead.)
#include "plugins/swiglu/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class Swiglu : public Operation {
 public:
  Swiglu(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        activation_(instruction.ints[0]),
        kernel_(choose("swiglu", swiglu_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), int64_t{4} * y_.cols, [&](int32_t begin, int32_t end) {
      tw_swiglu_args args{};
      args.rows = end - begin;
      args.width = y_.cols;
      args.y_dtype = y_.dtype;
      args.activation = activation_;
      args.x = x_.floats(view, begin);
      args.x_stride = x_.stride;
      args.y = y_.at(view, begin);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    return {rows * (x_.row_bytes() + y_.row_bytes()), rows * y_.cols * 20};
  }

 private:
  BufferRef x_, y_;
  int32_t activation_;
  tw_swiglu_fn kernel_;
};

}  // namespace

void check_swiglu(const InstructionCheck& c) {
  const int32_t activation = c.instruction.ints[0];
  c.require(activation >= 0 && activation < TW_ACTIVATIONS, "activation must be below ", int{TW_ACTIVATIONS},
            ", is ", activation);
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_cols("x", c.in(0), uint64_t{2} * c.out(0)->cols);
}

std::unique_ptr<Operation> make_swiglu(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Swiglu>(instruction, context);
}

}  // namespace tensorwright
