// matmul: y[rows, n] = epilogue(x[rows, k] * w[n, k]^T + bias) + residual.
#include "plugins/matmul/instruction.h"

#include "plugins/matmul/kernels.h"
#include "plugins/matmul/tiling.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class Matmul : public Operation {
 public:
  Matmul(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        has_residual_(instruction.in[1] >= 0),
        w_(context.weight_data(instruction.weight[0])),
        bias_(context.weight_floats(instruction.weight[1])),
        panels_(static_cast<int32_t>(context.weight(instruction.weight[0]).n / TW_LANES)),
        panel_bytes_(static_cast<int64_t>(tw_panel_bytes(x_.dtype, static_cast<size_t>(x_.cols)))),
        epilogue_(instruction.ints[0]),
        n_(instruction.ints[1]),
        kernel_(choose("matmul", matmul_kernels(x_.dtype), context.isa)) {
    if (has_residual_) residual_ = context.buffer(instruction.in[1]);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t rows = x_.rows(view);
    if (rows == 0) return;
    const MatmulTiling t = tile_matmul(rows, panels_, x_.row_bytes(), panel_bytes_, team.threads());
    team.run(t.tasks(), [&](int task, int) {
      const int32_t row = t.row(task), panel = t.panel(task);
      run_tile(view, row, std::min(t.row_tile, rows - row), panel, std::min(panel + t.panel_block, panels_));
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    const int64_t residual = has_residual_ ? residual_.row_bytes() : 0;
    return {rows == 0 ? 0 : panels_ * panel_bytes_ + rows * (x_.row_bytes() + y_.row_bytes() + residual),
            2 * rows * x_.cols * panels_ * TW_LANES};
  }

 private:
  void run_tile(const StepView& view, int32_t row, int32_t rows, int32_t panel_begin,
                int32_t panel_end) const {
    tw_matmul_args args{};
    args.rows = rows;
    args.k = x_.cols;
    args.n = n_;
    args.panel_begin = panel_begin;
    args.panel_end = panel_end;
    args.epilogue = epilogue_;
    args.y_dtype = y_.dtype;
    args.x = x_.at(view, row);
    args.x_stride = x_.stride;
    args.w = w_;
    args.bias = bias_;
    if (has_residual_) {
      args.residual = residual_.floats(view, row);
      args.residual_stride = residual_.stride;
    }
    args.y = y_.at(view, row);
    args.y_stride = y_.stride;
    kernel_(&args);
  }

  BufferRef x_, residual_, y_;
  bool has_residual_;
  const char* w_;
  const float* bias_;
  int32_t panels_;
  int64_t panel_bytes_;
  int32_t epilogue_, n_;
  tw_matmul_fn kernel_;
};

}  // namespace

uint64_t check_product(const InstructionCheck& c) {
  const int32_t epilogue = c.instruction.ints[0], n = c.instruction.ints[1];
  c.require_same_kind();
  c.require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "epilogue must be 0 to ", int{TW_EPILOGUE_LAST},
            ", is ", epilogue);
  c.require(n >= 1, "n must be positive, is ", n);
  const uint64_t columns = ceil_panels(static_cast<uint64_t>(n));
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
