// quantized_matmul quantizes rows of x to int8 with a scale per group, then computes y = epilogue(x * w^T +
// bias) + residual.
#include "plugins/matmul/instruction.h"

#include "plugins/quantized_matmul/kernels.h"

namespace tensorwright {
namespace {

constexpr int64_t kFewElements = 16384;  // to quantize these takes less time than to wake the other threads

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class QuantizedMatmul : public Operation {
 public:
  QuantizedMatmul(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        dtype_(static_cast<int>(context.weight(instruction.weight[0]).dtype)),
        group_(static_cast<int32_t>(context.weight(instruction.weight[0]).group)),
        product_(instruction, context, tw_quantized_panel_bytes(dtype_, x_.cols, group_)),
        groups_(tw_activation_groups(dtype_, x_.cols, group_)),
        row_(tw_quantized_row(x_.cols, group_)),
        quantize_(choose("quantize_rows", quantize_rows_kernels(), context.isa)),
        kernel_(choose("quantized_matmul", quantized_matmul_kernels(dtype_), context.isa)) {}

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
    // Weights with steps are decoded once for all rows of a call, which are the more the less of x counts.
    const int64_t row_bytes = tw_has_steps(dtype_) ? 0 : row_;
    product_.run_tiles(view, team, row_bytes, [&](int32_t row, const tw_matmul_args& tile) {
      tw_quantized_matmul_args args{tile, group_, scales(view, row), sums(view, row), rows};
      args.matmul.x = values(view, row);
      args.matmul.x_stride = row_;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override { return product_.cost(view); }

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
                                        static_cast<int32_t>(row_ / groups_),
                                        x_.dtype,
                                        x_.at(view, begin),
                                        x_.stride,
                                        values(view, begin),
                                        row_,
                                        scales(view, begin),
                                        sums(view, begin),
                                        x_.rows(view),
                                        tw_sum_factor(dtype_)};
    quantize_(&args);
  }

  BufferRef x_;
  int dtype_;
  int32_t group_;
  Product product_;
  int64_t groups_, row_;  // scales and int8 elements of a row of x
  tw_quantize_rows_fn quantize_;
  tw_quantized_matmul_fn kernel_;
};

}  // namespace

void check_quantized_matmul(const InstructionCheck& c) {
  const WeightRecord* w = c.weight(0);
  c.require_quantized("w", w, check_product(c), c.in(0)->cols);
  c.require(!keeps_activations(*w), "w must be of layout 2, is of layout ", w->layout);
  c.require_sums("w", w);
}

std::unique_ptr<Operation> make_quantized_matmul(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<QuantizedMatmul>(instruction, context);
}

}  // namespace tensorwright
