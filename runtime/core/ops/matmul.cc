// matmul: y[rows, n] = epilogue(x[rows, k] * w[n, k]^T + bias) + residual.
//
// Work is divided by output: by panels for few rows, which are bound by reading w once; by tiles of rows x
// panels for many, sized so that a tile of x and a block of panels share a core's L2 cache.
#include "plugins/matmul/kernel.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {
namespace {

// Bytes of weights in a task, at least. One block of rows: some microseconds. More rows: a kernel fetches
// ahead inside its own task only, so tasks are larger.
constexpr int64_t kTaskBytes = 64 << 10;
constexpr int64_t kFlatTaskBytes = 512 << 10;
constexpr int64_t kRowTileBytes = 256 << 10;  // of x
constexpr int64_t kPanelBlockBytes = 512 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How the output is cut: row tiles vary fastest, so that neighbouring tasks share a block of panels.
struct Tiling {
  int32_t row_tile, row_tiles, panel_block, panel_blocks;
};

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
    const Tiling t = tiling(rows, team.threads());
    team.run(t.row_tiles * t.panel_blocks, [&](int task, int) {
      const int32_t row = task % t.row_tiles * t.row_tile;
      const int32_t panel = task / t.row_tiles * t.panel_block;
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
  Tiling tiling(int32_t rows, int threads) const {
    constexpr int64_t kTasksPerThread = 4;  // a small matrix is cut finer, so that threads end together
    const int64_t most = std::clamp<int64_t>(kRowTileBytes / std::max<int64_t>(1, x_.row_bytes()), 24, 192);
    const int64_t even = ceil_div(rows, ceil_div(rows, most));
    Tiling t;
    t.row_tile =
        even == rows ? rows : static_cast<int32_t>(ceil_div(even, TW_MATMUL_ROW_BLOCK) * TW_MATMUL_ROW_BLOCK);
    t.row_tiles = static_cast<int32_t>(ceil_div(rows, t.row_tile));
    const int64_t units = ceil_div(panels_, TW_MATMUL_PANEL_BLOCK);
    const int64_t task_bytes = t.row_tiles > 1              ? kPanelBlockBytes
                               : rows > TW_MATMUL_ROW_BLOCK ? kFlatTaskBytes
                                                            : kTaskBytes;
    const int64_t wanted = task_bytes / (TW_MATMUL_PANEL_BLOCK * panel_bytes_);
    const int64_t fair = units * t.row_tiles / (kTasksPerThread * threads);
    const int64_t take = std::min(units, std::max<int64_t>(1, std::min(wanted, fair)));
    t.panel_block = static_cast<int32_t>(take) * TW_MATMUL_PANEL_BLOCK;
    t.panel_blocks = static_cast<int32_t>(ceil_div(panels_, t.panel_block));
    return t;
  }

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

std::unique_ptr<Operation> make_matmul(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Matmul>(instruction, context);
}

}  // namespace tensorwright
