// matmul: y[rows, n] = epilogue(x[rows, k] * w[n, k]^T + bias) + residual.
#include "plugins/matmul/instruction.h"

#include "plugins/matmul/kernels.h"
#include "plugins/matmul/pack.h"

namespace tensorwright {
namespace {

int64_t panel_bytes_of(const BufferRef& x) {
  return static_cast<int64_t>(tw_panel_bytes(x.dtype, static_cast<size_t>(x.cols)));
}

class Matmul : public Operation {
 public:
  Matmul(const Instruction& instruction, const OpContext& context)
      : product_(instruction, context, panel_bytes_of(context.buffer(instruction.in[0]))),
        kernel_(choose("matmul", matmul_kernels(product_.x.dtype), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    const BufferRef& x = product_.x;
    if (x.rows(view) == 0) return;
    product_.run_tiles(view, team, x.row_bytes(), [&](int32_t row, tw_matmul_args args) {
      args.x = x.at(view, row);
      args.x_stride = x.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override { return product_.cost(view); }

 private:
  Product product_;
  tw_matmul_fn kernel_;
};

}  // namespace

Product::Product(const Instruction& instruction, const OpContext& context, int64_t panel_bytes)
    : x(context.buffer(instruction.in[0])),
      y(context.buffer(instruction.out[0])),
      has_residual(instruction.in[1] >= 0),
      w(context.weight_data(instruction.weight[0])),
      bias(context.weight_floats(instruction.weight[1])),
      panels(static_cast<int32_t>(context.weight(instruction.weight[0]).n / TW_LANES)),
      epilogue(instruction.ints[0]),
      n(instruction.ints[1]),
      panel_bytes(panel_bytes) {
  if (has_residual) residual = context.buffer(instruction.in[1]);
}

Cost Product::cost(const StepView& view) const {
  const int64_t rows = x.rows(view);
  const int64_t residual_bytes = has_residual ? residual.row_bytes() : 0;
  return {rows == 0 ? 0 : panels * panel_bytes + rows * (x.row_bytes() + y.row_bytes() + residual_bytes),
          2 * rows * x.cols * panels * TW_LANES};
}

tw_matmul_args Product::arguments(const StepView& view, int32_t row) const {
  tw_matmul_args args{};
  args.k = x.cols;
  args.n = n;
  args.epilogue = epilogue;
  args.y_dtype = y.dtype;
  args.w = w;
  args.bias = bias;
  if (has_residual) {
    args.residual = residual.floats(view, row);
    args.residual_stride = residual.stride;
  }
  args.y = y.at(view, row);
  args.y_stride = y.stride;
  if (view.addends) args.addends = view.addends + row;
  return args;
}

uint64_t check_product(const InstructionCheck& c) {
  const int32_t epilogue = c.instruction.ints[0], n = c.instruction.ints[1];
  c.require_same_kind();
  c.require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "epilogue must be 0 to ", int{TW_EPILOGUE_LAST},
            ", is ", epilogue);
  c.require(n >= 1, "n must be positive, is ", n);
  const auto columns = static_cast<uint64_t>(panels_of(n));
  const uint64_t panels = columns * static_cast<uint64_t>(tw_epilogue_panels(epilogue));
  c.require_raw("bias", c.weight(1), panels * TW_LANES);
  c.require_float32("residual", c.in(1));
  c.require_cols("residual", c.in(1), static_cast<uint64_t>(n));
  c.require_cols("y", c.out(0), static_cast<uint64_t>(n));
  return panels;
}

void check_matmul(const InstructionCheck& c) {
  const BufferRecord* x = c.in(0);
  const WeightRecord* w = c.weight(0);
  c.require_panels("w", w, check_product(c), x->cols);
  c.require(w->dtype == x->dtype, "w must have x's dtype ", x->dtype, ", has ", w->dtype);
}

std::unique_ptr<Operation> make_matmul(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Matmul>(instruction, context);
}

}  // namespace tensorwright
