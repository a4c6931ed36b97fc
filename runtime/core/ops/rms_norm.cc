// rms_norm: y = rms_norm(x) * (w + weight_offset); with a residual, sum = x + residual and y is sum's norm.
#include "plugins/rms_norm/kernels.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {
namespace {

class RmsNorm : public Operation {
 public:
  RmsNorm(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        has_residual_(instruction.in[1] >= 0),
        w_(context.weight_floats(instruction.weight[0])),
        eps_(instruction.floats[0]),
        weight_offset_(instruction.floats[1]),
        kernel_(choose("rms_norm", rms_norm_kernels(), context.isa)) {
    if (has_residual_) {
      residual_ = context.buffer(instruction.in[1]);
      sum_ = context.buffer(instruction.out[1]);
    }
  }

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
      if (has_residual_) {
        args.residual = residual_.floats(view, begin);
        args.residual_stride = residual_.stride;
        args.sum = sum_.floats(view, begin);
        args.sum_stride = sum_.stride;
      }
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    const int64_t extra = has_residual_ ? residual_.row_bytes() + sum_.row_bytes() : 0;
    return {rows * (x_.row_bytes() + y_.row_bytes() + extra) + x_.cols * int64_t{4}, rows * x_.cols * 4};
  }

 private:
  BufferRef x_, residual_, y_, sum_;
  bool has_residual_;
  const float* w_;
  float eps_, weight_offset_;
  tw_rms_norm_fn kernel_;
};

}  // namespace

std::unique_ptr<Operation> make_rms_norm(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RmsNorm>(instruction, context);
}

}  // namespace tensorwright
