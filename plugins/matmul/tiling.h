// Cuts a matmul's output into tasks: for few rows by panels, because reading w once takes the time; for many
// rows by tiles of rows x panels, sized so that a tile of x and a block of panels share a core's L2 cache.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_TILING_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_TILING_H_

#include <algorithm>
#include <cstdint>

#include "plugins/matmul/kernel.h"
#include "runtime/core/base/work_cut.h"

namespace tensorwright {

// Row tiles vary fastest, so that neighbouring tasks share a block of panels.
struct MatmulTiling {
  int32_t row_tile, row_tiles, panel_block, panel_blocks;

  int32_t tasks() const { return row_tiles * panel_blocks; }
  int32_t row(int task) const { return task % row_tiles * row_tile; }
  int32_t panel(int task) const { return task / row_tiles * panel_block; }
};

// x_row_bytes, panel_bytes: the bytes of one row of x and of one panel of w, as the kernel reads them.
inline MatmulTiling tile_matmul(int32_t rows, int32_t panels, int64_t x_row_bytes, int64_t panel_bytes,
                                int threads, const WorkCut& cut = {}) {
  constexpr int64_t kFairRows = 96;  // a tile is not made smaller than this for fairness
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t most = std::clamp<int64_t>(cut.row_tile_bytes / std::max<int64_t>(1, x_row_bytes), 24, 192);
  // Threads end together if every block of panels has as many tiles of rows for each of them.
  int64_t cuts = ceil_div(rows, most);
  const int64_t fair_cuts = ceil_div(cuts, threads) * threads;
  if (cuts > 1 && rows >= fair_cuts * kFairRows) cuts = fair_cuts;
  const int64_t even = ceil_div(rows, cuts);
  MatmulTiling t;
  t.row_tile =
      even == rows ? rows : static_cast<int32_t>(ceil_div(even, TW_MATMUL_ROW_BLOCK) * TW_MATMUL_ROW_BLOCK);
  t.row_tiles = static_cast<int32_t>(ceil_div(rows, t.row_tile));
  const int64_t units = ceil_div(panels, TW_MATMUL_PANEL_BLOCK);
  const int64_t task_bytes = t.row_tiles > 1              ? cut.panel_block_bytes
                             : rows > TW_MATMUL_ROW_BLOCK ? cut.flat_task_bytes
                                                          : cut.task_bytes;
  const int64_t wanted = task_bytes / (TW_MATMUL_PANEL_BLOCK * panel_bytes);
  const int64_t fair = units * t.row_tiles / (cut.tasks_per_thread * threads);
  const int64_t take = std::min(units, std::max<int64_t>(1, std::min(wanted, fair)));
  t.panel_block = static_cast<int32_t>(take) * TW_MATMUL_PANEL_BLOCK;
  t.panel_blocks = static_cast<int32_t>(ceil_div(panels, t.panel_block));
  return t;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_TILING_H_
