// What the instructions of float and quantized matrix products share: operands, checks, tasks and costs.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_

#include <algorithm>
#include <cstdint>

#include "plugins/matmul/kernel.h"
#include "plugins/matmul/tiling.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {

// Checks all operands but x and w. Returns how many panels w must have: ceil(n / 16), or twice that if the
// epilogue is gated. A bias has as many floats as w has rows, in panel order.
uint64_t check_product(const InstructionCheck& c);

// The operands and attributes of a product.
struct Product {
  BufferRef x, residual, y;
  bool has_residual;
  const char* w;
  const float* bias;
  int32_t panels, epilogue, n;
  int64_t panel_bytes;

  Product(const Instruction& instruction, const OpContext& context, int64_t panel_bytes);

  // Cuts the product into tiles and calls body(row, args) for each of them, in parallel. The arguments are
  // those of a kernel that begins at row `row`, but for x. x_row_bytes: the bytes of a row of x, as the
  // kernel reads it.
  template <typename Body>
  void run_tiles(const StepView& view, ThreadTeam& team, int64_t x_row_bytes, Body&& body) const {
    const int32_t rows = x.rows(view);
    const MatmulTiling t = tile_matmul(rows, panels, x_row_bytes, panel_bytes, team.threads(), team.cut());
    team.run(t.tasks(), [&](int task, int) {
      const int32_t row = t.row(task), panel = t.panel(task);
      tw_matmul_args args = arguments(view, row);
      args.rows = std::min(t.row_tile, rows - row);
      args.panel_begin = panel;
      args.panel_end = std::min(panel + t.panel_block, panels);
      body(row, args);
    });
  }

  Cost cost(const StepView& view) const;

 private:
  tw_matmul_args arguments(const StepView& view, int32_t row) const;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_INSTRUCTION_H_
