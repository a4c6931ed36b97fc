// weight_only_matmul: y = epilogue(x * w^T + bias) + residual, with w quantized and x as it is.
#include "plugins/matmul/instruction.h"

#include "plugins/weight_only_matmul/kernels.h"

namespace tensorwright {
namespace {

class WeightOnlyMatmul : public Operation {
 public:
  WeightOnlyMatmul(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        dtype_(static_cast<int32_t>(context.weight(instruction.weight[0]).dtype)),
        group_(static_cast<int32_t>(context.weight(instruction.weight[0]).group)),
        product_(instruction, context, tw_quantized_panel_bytes(dtype_, x_.cols, group_)),
        kernel_(choose("weight_only_matmul", weight_only_matmul_kernels(x_.dtype), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    if (x_.rows(view) == 0) return;
    product_.run_tiles(view, team, x_.row_bytes(), [&](int32_t row, const tw_matmul_args& tile) {
      tw_weight_only_matmul_args args{tile, dtype_, group_};
      args.matmul.x = x_.at(view, row);
      args.matmul.x_stride = x_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override { return product_.cost(view); }

 private:
  BufferRef x_;
  int32_t dtype_, group_;
  Product product_;
  tw_weight_only_matmul_fn kernel_;
};

}  // namespace

void check_weight_only_matmul(const InstructionCheck& c) {
  const WeightRecord* w = c.weight(0);
  c.require_quantized("w", w, check_product(c), c.in(0)->cols);
  c.require(keeps_activations(*w), "w must be of layout 3, is of layout ", w->layout);
}

std::unique_ptr<Operation> make_weight_only_matmul(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<WeightOnlyMatmul>(instruction, context);
}

}  // namespace tensorwright
