// rms_norm_columns: the norms of q and k inside a row of qkv. A row's runs of columns are the rows of the
// rms_norm kernel; every other column of y is x's.
#include <cstring>

#include "plugins/rms_norm/kernels.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {
namespace {

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

std::unique_ptr<Operation> make_rms_norm_columns(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RmsNormColumns>(instruction, context);
}

}  // namespace tensorwright
