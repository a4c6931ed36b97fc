// quantized_matmul quantizes rows of x to int8 with a scale per group, then computes y = epilogue(x * w^T +
// bias) + residual.
#include "plugins/matmul/instruction.h"

#include "plugins/matmul/tiling.h"
#include "plugins/quantized_matmul/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int64_t kFewElements = 16384;  // to quantize these takes less time than to wake the other threads

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class QuantizedMatmul : public Operation {
 public:
  QuantizedMatmul(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        has_residual_(instruction.in[1] >= 0),
        weight_(context.weight(instruction.weight[0])),
        w_(context.weight_data(instruction.weight[0])),
        bias_(context.weight_floats(instruction.weight[1])),
        panels_(static_cast<int32_t>(weight_.n / TW_LANES)),
        group_(static_cast<int32_t>(weight_.group)),
        groups_(tw_quantized_groups(x_.cols, group_)),
        row_(tw_quantized_row(x_.cols, group_)),
        panel_bytes_(tw_quantized_panel_bytes(static_cast<int>(weight_.dtype), x_.cols, group_)),
        epilogue_(instruction.ints[0]),
        n_(instruction.ints[1]),
        quantize_(choose("quantize_rows", quantize_rows_kernels(), context.isa)),
        kernel_(choose("quantized_matmul", quantized_matmul_kernels(static_cast<int>(weight_.dtype)),
                       context.isa)) {
    if (has_residual_) residual_ = context.buffer(instruction.in[1]);
  }

  // The scratch is [rows][row_] int8, then [groups_][rows] scales and as many sums.
  size_t reserve(const StepLimits& limits, int) override {
    const int64_t rows = x_.kind == static_cast<int>(BufferKind::kTokens) ? limits.tokens : limits.rows;
    return static_cast<size_t>(scales_at(rows) + 2 * align64(rows * groups_ * 4));
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t rows = x_.rows(view);
    if (rows == 0) return;
    if (int64_t{rows} * x_.cols <= kFewElements) {
      quantize(view, 0, rows);
    } else {
      split_rows(team, rows, x_.cols, [&](int32_t begin, int32_t end) { quantize(view, begin, end); });
    }
    const MatmulTiling t = tile_matmul(rows, panels_, row_, panel_bytes_, team.threads());
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
  int64_t scales_at(int64_t rows) const { return align64(rows * row_); }

  int8_t* values(const StepView& view, int32_t row) const {
    return reinterpret_cast<int8_t*>(view.scratch) + row * row_;
  }
  float* scales(const StepView& view, int32_t row) const {
    return reinterpret_cast<float*>(view.scratch + scales_at(x_.rows(view))) + row;
  }
  int32_t* sums(const StepView& view, int32_t row) const {
    const int64_t rows = x_.rows(view);
    char* at = view.scratch + scales_at(rows) + align64(rows * groups_ * 4);
    return reinterpret_cast<int32_t*>(at) + row;
  }

  void quantize(const StepView& view, int32_t begin, int32_t end) const {
    const tw_quantize_rows_args args = {end - begin,
                                        x_.cols,
                                        group_,
                                        x_.dtype,
                                        x_.at(view, begin),
                                        x_.stride,
                                        values(view, begin),
                                        row_,
                                        scales(view, begin),
                                        sums(view, begin),
                                        x_.rows(view),
                                        tw_sum_factor(static_cast<int>(weight_.dtype))};
    quantize_(&args);
  }

  void run_tile(const StepView& view, int32_t row, int32_t rows, int32_t panel_begin,
                int32_t panel_end) const {
    tw_quantized_matmul_args args{};
    args.matmul.rows = rows;
    args.matmul.k = x_.cols;
    args.matmul.n = n_;
    args.matmul.panel_begin = panel_begin;
    args.matmul.panel_end = panel_end;
    args.matmul.epilogue = epilogue_;
    args.matmul.y_dtype = y_.dtype;
    args.matmul.x = values(view, row);
    args.matmul.x_stride = row_;
    args.matmul.w = w_;
    args.matmul.bias = bias_;
    if (has_residual_) {
      args.matmul.residual = residual_.floats(view, row);
      args.matmul.residual_stride = residual_.stride;
    }
    args.matmul.y = y_.at(view, row);
    args.matmul.y_stride = y_.stride;
    args.group = group_;
    args.x_scale = scales(view, row);
    args.x_sum = sums(view, row);
    args.group_stride = x_.rows(view);
    kernel_(&args);
  }

  BufferRef x_, residual_, y_;
  bool has_residual_;
  WeightRecord weight_;
  const char* w_;
  const float* bias_;
  int32_t panels_;
  int32_t group_;
  int64_t groups_, row_;  // groups and int8 elements of a row of x
  int64_t panel_bytes_;
  int32_t epilogue_, n_;
  tw_quantize_rows_fn quantize_;
  tw_quantized_matmul_fn kernel_;
};

}  // namespace

void check_quantized_matmul(const InstructionCheck& c) {
  const WeightRecord* w = c.weight(0);
  c.require_quantized("w", w, check_product(c), c.in(0)->cols);
  c.require(w->group != 0 || w->k <= TW_MOST_WHOLE_ROW, "w of whole rows must have at most ",
            int{TW_MOST_WHOLE_ROW}, " columns, has ", w->k);
}

std::unique_ptr<Operation> make_quantized_matmul(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<QuantizedMatmul>(instruction, context);
}

}  // namespace tensorwright
