// head_products: y_h = x_h W_h^T for every head. The panels of a head follow those of the last, and the
// kernels are those of matmul, quantized_matmul and weight_only_matmul, which see one head's columns of x and
// y at a time.
#include <algorithm>

#include "plugins/matmul/kernels.h"
#include "plugins/matmul/pack.h"
#include "plugins/matmul/tiling.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/quantized_matmul/layout.h"
#include "plugins/weight_only_matmul/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class HeadProducts : public Operation {
 public:
  HeadProducts(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        w_(context.weight(instruction.weight[0])),
        data_(context.weight_data(instruction.weight[0])),
        heads_(instruction.ints[0]),
        k_(static_cast<int32_t>(w_.k)),
        x_head_(x_.cols / heads_),
        n_(y_.cols / heads_),
        panels_(static_cast<int32_t>(panels_of(n_))),
        panel_bytes_(static_cast<int64_t>(w_.bytes / (w_.n / TW_LANES))) {
    dtype_ = static_cast<int>(w_.dtype);
    group_ = static_cast<int32_t>(w_.group);
    if (!is_quantized(w_)) {
      kernel_ = choose("matmul", matmul_kernels(x_.dtype), context.isa);
      return;
    }
    if (keeps_activations(w_)) {
      weight_only_kernel_ = choose("weight_only_matmul", weight_only_matmul_kernels(x_.dtype), context.isa);
      return;
    }
    groups_ = tw_activation_groups(dtype_, k_, group_);
    row_ = tw_quantized_row(k_, group_);
    quantize_ = choose("quantize_rows", quantize_rows_kernels(), context.isa);
    quantized_kernel_ = choose("quantized_matmul", quantized_matmul_kernels(dtype_), context.isa);
  }

  // The scratch is, for each head in turn, [rows][row_] int8; then for each head [groups_][rows] scales; then
  // as many sums.
  size_t reserve(const StepLimits& limits, int) override {
    const int64_t rows = x_.kind == static_cast<int>(BufferKind::kTokens) ? limits.tokens : limits.rows;
    return row_ == 0 ? 0 : static_cast<size_t>(sums_at(rows) + heads_ * rows * groups_ * 4);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t rows = x_.rows(view);
    if (rows == 0) return;
    if (row_ > 0) {
      split_rows(team, heads_ * rows, k_, [&](int32_t begin, int32_t end) {
        while (begin < end) {
          const int32_t head = begin / rows, first = begin % rows;
          const int32_t count = std::min(end - begin, rows - first);
          quantize(view, head, first, count);
          begin += count;
        }
      });
    }
    const int64_t x_row_bytes =
        row_ > 0 ? row_ : int64_t{k_} * static_cast<int64_t>(tw_dtype_bytes(x_.dtype));
    const MatmulTiling t = tile_matmul(rows, panels_, x_row_bytes, panel_bytes_, team.threads(), team.cut());
    team.run(heads_ * t.tasks(),
             [&](int task, int) { run_tile(view, t, task / t.tasks(), task % t.tasks()); });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = x_.rows(view);
    return {rows == 0 ? 0 : static_cast<int64_t>(w_.bytes) + rows * (x_.row_bytes() + y_.row_bytes()),
            2 * rows * heads_ * k_ * panels_ * TW_LANES};
  }

 private:
  int64_t scales_at(int64_t rows) const { return whole_lines(heads_ * rows * row_); }
  int64_t sums_at(int64_t rows) const { return scales_at(rows) + whole_lines(heads_ * rows * groups_ * 4); }

  int8_t* values(const StepView& view, int32_t head, int32_t row) const {
    return reinterpret_cast<int8_t*>(view.scratch) + (int64_t{head} * x_.rows(view) + row) * row_;
  }
  float* scales(const StepView& view, int32_t head, int32_t row) const {
    const int64_t rows = x_.rows(view);
    return reinterpret_cast<float*>(view.scratch + scales_at(rows)) + head * rows * groups_ + row;
  }
  int32_t* sums(const StepView& view, int32_t head, int32_t row) const {
    const int64_t rows = x_.rows(view);
    return reinterpret_cast<int32_t*>(view.scratch + sums_at(rows)) + head * rows * groups_ + row;
  }

  const char* x_at(const StepView& view, int32_t head, int32_t row) const {
    return x_.at(view, row) +
           static_cast<size_t>(head) * static_cast<size_t>(x_head_) * tw_dtype_bytes(x_.dtype);
  }

  void quantize(const StepView& view, int32_t head, int32_t row, int32_t count) const {
    const tw_quantize_rows_args args = {count,
                                        k_,
                                        static_cast<int32_t>(row_ / groups_),
                                        x_.dtype,
                                        x_at(view, head, row),
                                        x_.stride,
                                        values(view, head, row),
                                        row_,
                                        scales(view, head, row),
                                        sums(view, head, row),
                                        x_.rows(view),
                                        tw_sum_factor(dtype_)};
    quantize_(&args);
  }

  void run_tile(const StepView& view, const MatmulTiling& t, int32_t head, int task) const {
    const int32_t rows = x_.rows(view), row = t.row(task), panel = t.panel(task);
    tw_matmul_args args{};
    args.rows = std::min(t.row_tile, rows - row);
    args.k = k_;
    args.n = n_;
    args.panel_begin = panel;
    args.panel_end = std::min(panel + t.panel_block, panels_);
    args.epilogue = TW_EPILOGUE_NONE;
    args.y_dtype = y_.dtype;
    args.w = data_ + int64_t{head} * panels_ * panel_bytes_;
    args.y =
        y_.at(view, row) + static_cast<size_t>(head) * static_cast<size_t>(n_) * tw_dtype_bytes(y_.dtype);
    args.y_stride = y_.stride;
    if (row_ == 0) {
      args.x = x_at(view, head, row);
      args.x_stride = x_.stride;
      if (weight_only_kernel_ != nullptr) {
        const tw_weight_only_matmul_args more = {args, dtype_, group_};
        weight_only_kernel_(&more);
      } else {
        kernel_(&args);
      }
      return;
    }
    args.x = values(view, head, row);
    args.x_stride = row_;
    const tw_quantized_matmul_args more = {args, group_, scales(view, head, row), sums(view, head, row),
                                           rows};
    quantized_kernel_(&more);
  }

  BufferRef x_, y_;
  WeightRecord w_;
  const char* data_;
  int32_t heads_, k_;
  int32_t x_head_;  // columns of a head of x, of which k_ are read
  int32_t n_, panels_;
  int64_t panel_bytes_;
  tw_matmul_fn kernel_ = nullptr;

  tw_weight_only_matmul_fn weight_only_kernel_ = nullptr;

  int dtype_;  // of w
  int32_t group_;
  int64_t groups_ = 0, row_ = 0;  // groups and int8 elements of a head of a row of x; row_ is 0 for floats
  tw_quantize_rows_fn quantize_ = nullptr;
  tw_quantized_matmul_fn quantized_kernel_ = nullptr;
};

}  // namespace

// A kernel reads bfloat16 in pairs, so a head of x must not end within one.
void check_head_products(const InstructionCheck& c) {
  const BufferRecord *x = c.in(0), *y = c.out(0);
  const WeightRecord* w = c.weight(0);
  const int32_t heads = c.instruction.ints[0];
  c.require_same_kind();
  c.require(heads >= 1 && heads <= (1 << 20), "heads must be 1 to 2^20, is ", heads);
  const auto count = static_cast<uint32_t>(heads);
  c.require(x->cols % count == 0 && y->cols % count == 0, "x and y must have whole heads, have ", x->cols,
            " and ", y->cols, " cols");
  c.require(w->k >= 1 && w->k <= x->cols / count, "w must have at most the ", x->cols / count,
            " columns of a head of x, has ", w->k);
  const auto n = static_cast<int64_t>(y->cols / count);
  const uint64_t panels = uint64_t{count} * static_cast<uint64_t>(panels_of(n));
  if (is_quantized(*w)) {
    c.require_quantized("w", w, panels, w->k);
    c.require_sums("w", w);
    return;
  }
  c.require_panels("w", w, panels, w->k);
  c.require(w->dtype == x->dtype, "w must have x's dtype ", x->dtype, ", has ", w->dtype);
  c.require(x->dtype != TW_BF16 || w->k % 2 == 0, "w must have an even number of columns, has ", w->k);
}

std::unique_ptr<Operation> make_head_products(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<HeadProducts>(instruction, context);
}

}  // namespace tensorwright
