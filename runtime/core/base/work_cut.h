// How finely products are cut into tasks (plugins/matmul/tiling.h). No result depends on it, but the time
// does, by the caches and the cores of the machine: `tensorwright tune` measures what is best.
#ifndef TENSORWRIGHT_RUNTIME_CORE_WORK_CUT_H_
#define TENSORWRIGHT_RUNTIME_CORE_WORK_CUT_H_

#include <cstdint>

namespace tensorwright {

struct WorkCut {
  // A task has at least this many bytes of weights. With one block of rows that is some microseconds.
  int64_t task_bytes = 64 << 10;
  // The same with more rows than a block: a kernel fetches ahead only inside a task.
  int64_t flat_task_bytes = 512 << 10;
  // With many rows, a tile of x and a block of panels share a core's L2 cache.
  int64_t row_tile_bytes = 256 << 10, panel_block_bytes = 512 << 10;
  // Small matrices are cut finer, so that threads end together.
  int64_t tasks_per_thread = 4;
};

struct WorkCutField {
  const char* name;
  int64_t WorkCut::* field;
  int64_t least, most;
};
inline constexpr WorkCutField kWorkCutFields[] = {
    {"task_bytes", &WorkCut::task_bytes, 4 << 10, 16 << 20},
    {"flat_task_bytes", &WorkCut::flat_task_bytes, 4 << 10, 16 << 20},
    {"row_tile_bytes", &WorkCut::row_tile_bytes, 16 << 10, 16 << 20},
    {"panel_block_bytes", &WorkCut::panel_block_bytes, 16 << 10, 16 << 20},
    {"tasks_per_thread", &WorkCut::tasks_per_thread, 1, 64},
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_WORK_CUT_H_
