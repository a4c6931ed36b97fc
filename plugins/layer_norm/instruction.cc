// layer_norm of whole rows, with or without a residual that is added first, or of runs of columns inside a
// row of qkv (the norms of q and k). Columns of y outside the runs are those of x.
#include "plugins/rms_norm/instruction.h"

#include <cstring>

#include "plugins/layer_norm/kernels.h"

namespace tensorwright {
namespace {

class LayerNorm : public Operation {
 public:
  LayerNorm(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        residual_(instruction, context),
        w_(context.weight_floats(instruction.weight[0])),
        b_(context.weight_floats(instruction.weight[1])),
        start_(instruction.ints[0]),
        heads_(instruction.ints[1]),
        width_(instruction.ints[2]),
        eps_(instruction.floats[0]),
        weight_offset_(instruction.floats[1]),
        kernel_(choose("layer_norm", layer_norm_kernels(), context.isa)) {
    const bool own_weights = context.weight(instruction.weight[0]).k != static_cast<uint32_t>(width_);
    w_step_ = own_weights ? width_ : 0;
  }

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, x_.rows(view), x_.cols, [&](int32_t begin, int32_t end) {
      copy_other_columns(view, begin, end);
      for (int32_t head = 0; head < heads_; ++head) run_head(view, begin, end, head);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view), columns = int64_t{heads_} * width_;
    const auto y_bytes = static_cast<int64_t>(tw_dtype_bytes(y_.dtype));
    return {rows * (columns * (4 + y_bytes) + residual_.row_bytes()) + columns * int64_t{4},
            rows * columns * 7};
  }

 private:
  // The check of the plan ensures that y is float32 if a column is not normalised.
  void copy_other_columns(const StepView& view, int32_t begin, int32_t end) const {
    if (heads_ * width_ == x_.cols || x_.at(view) == y_.at(view)) return;
    for (int32_t row = begin; row < end; ++row) {
      std::memcpy(y_.at(view, row), x_.at(view, row), static_cast<size_t>(x_.row_bytes()));
    }
  }

  void run_head(const StepView& view, int32_t begin, int32_t end, int32_t head) const {
    const int64_t first = start_ + int64_t{head} * width_;
    tw_layer_norm_args args{};
    args.rows = end - begin;
    args.width = width_;
    args.eps = eps_;
    args.weight_offset = weight_offset_;
    args.y_dtype = y_.dtype;
    args.x = x_.floats(view, begin) + first;
    args.x_stride = x_.stride;
    args.w = w_ + int64_t{head} * w_step_;
    args.b = b_ ? b_ + int64_t{head} * w_step_ : nullptr;
    args.y = y_.at(view, begin) + first * static_cast<int64_t>(tw_dtype_bytes(y_.dtype));
    args.y_stride = y_.stride;
    residual_.set(view, begin, &args);
    kernel_(&args);
  }

  BufferRef x_, y_;
  ResidualSum residual_;
  const float *w_, *b_;
  int32_t start_, heads_, width_, w_step_ = 0;
  float eps_, weight_offset_;
  tw_layer_norm_fn kernel_;
};

}  // namespace

// w and b have `width` elements, which all runs share, or heads * width. With a residual, and for a y that is
// not float32, one run must be the whole row.
void check_layer_norm(const InstructionCheck& c) {
  const int32_t start = c.instruction.ints[0], heads = c.instruction.ints[1], width = c.instruction.ints[2];
  require_norm(c);
  c.require_runs(start, heads, width, c.in(0)->cols);
  const bool whole = static_cast<uint32_t>(width) == c.in(0)->cols;
  c.require(whole || !c.in(1), "only whole rows may have a residual");
  if (!whole) c.require_float32("y", c.out(0));
  const bool shared = c.weight(0)->k == static_cast<uint32_t>(width);
  c.require_raw("w", c.weight(0), static_cast<uint64_t>(shared ? width : heads * width));
  c.require_raw("b", c.weight(1), c.weight(0)->k);
}

std::unique_ptr<Operation> make_layer_norm(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<LayerNorm>(instruction, context);
}

}  // namespace tensorwright
