// rms_norm: y = rms_norm(x) * (w + weight_offset); with a residual, sum = x + residual, and y is the norm of
// sum.
#include "plugins/rms_norm/instruction.h"

#include <cstring>

#include "plugins/rms_norm/kernels.h"

namespace tensorwright {
namespace {

class RmsNorm : public Operation {
 public:
  RmsNorm(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        residual_(instruction, context),
        w_(context.weight_floats(instruction.weight[0])),
        eps_(instruction.floats[0]),
        weight_offset_(instruction.floats[1]),
        kernel_(choose("rms_norm", rms_norm_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, x_.rows(view), x_.cols, [&](int32_t begin, int32_t end) {
      tw_rms_norm_args args{};
      args.rows = end - begin;
      args.width = x_.cols;
      args.eps = eps_;
      args.weight_offset = weight_offset_;
      args.y_dtype = y_.dtype;
      args.x = x_.floats(view, begin);
      args.x_stride = x_.stride;
      args.w = w_;
      args.y = y_.at(view, begin);
      args.y_stride = y_.stride;
      residual_.set(view, begin, &args);
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {rows * (x_.row_bytes() + y_.row_bytes() + residual_.row_bytes()) + x_.cols * int64_t{4},
            rows * x_.cols * 4};
  }

 private:
  BufferRef x_, y_;
  ResidualSum residual_;
  const float* w_;
  float eps_, weight_offset_;
  tw_rms_norm_fn kernel_;
};

// Normalises q and k inside a row of qkv. The runs of columns of a row are the rows of the rms_norm kernel;
// the other columns of y are those of x.
class RmsNormColumns : public Operation {
 public:
  RmsNormColumns(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        w_(context.weight_floats(instruction.weight[0])),
        width_(static_cast<int32_t>(context.weight(instruction.weight[0]).k)),
        start_(instruction.ints[0]),
        heads_(instruction.ints[1]),
        eps_(instruction.floats[0]),
        weight_offset_(instruction.floats[1]),
        kernel_(choose("rms_norm", rms_norm_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, x_.rows(view), x_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) run_row(x_.floats(view, row), y_.floats(view, row));
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view), columns = int64_t{heads_} * width_;
    return {2 * rows * columns * 4, rows * columns * 4};
  }

 private:
  void run_row(const float* x, float* y) const {
    if (x != y) std::memcpy(y, x, static_cast<size_t>(x_.row_bytes()));
    tw_rms_norm_args args{};
    args.rows = heads_;
    args.width = width_;
    args.eps = eps_;
    args.weight_offset = weight_offset_;
    args.y_dtype = TW_F32;
    args.x = x + start_;
    args.x_stride = width_;
    args.w = w_;
    args.y = y + start_;
    args.y_stride = width_;
    kernel_(&args);
  }

  BufferRef x_, y_;
  const float* w_;
  int32_t width_, start_, heads_;
  float eps_, weight_offset_;
  tw_rms_norm_fn kernel_;
};

}  // namespace

void require_norm_floats(const InstructionCheck& c) {
  const float eps = c.instruction.floats[0], weight_offset = c.instruction.floats[1];
  c.require_finite("eps", eps);
  c.require(eps >= 0, "eps must not be negative, is ", eps);
  c.require_finite("weight_offset", weight_offset);
}

void require_norm(const InstructionCheck& c) {
  const BufferRecord *x = c.in(0), *residual = c.in(1), *sum = c.out(1);
  c.require_same_kind();
  c.require((residual == nullptr) == (sum == nullptr), "residual and sum must come together");
  c.require_float32("x", x);
  c.require_float32("residual", residual);
  c.require_float32("sum", sum);
  c.require_cols("residual", residual, x->cols);
  c.require_cols("y", c.out(0), x->cols);
  c.require_cols("sum", sum, x->cols);
  require_norm_floats(c);
}

void check_rms_norm(const InstructionCheck& c) {
  require_norm(c);
  c.require_raw("w", c.weight(0), c.in(0)->cols);
}

void check_rms_norm_columns(const InstructionCheck& c) {
  const BufferRecord* x = c.in(0);
  const uint64_t width = c.weight(0)->k;
  c.require_same_kind();
  c.require_float32("x", x);
  c.require_float32("y", c.out(0));
  c.require_cols("y", c.out(0), x->cols);
  c.require_raw("w", c.weight(0), width);
  c.require_runs(c.instruction.ints[0], c.instruction.ints[1], width, x->cols);
  require_norm_floats(c);
}

std::unique_ptr<Operation> make_rms_norm(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RmsNorm>(instruction, context);
}

std::unique_ptr<Operation> make_rms_norm_columns(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RmsNormColumns>(instruction, context);
}

}  // namespace tensorwright
