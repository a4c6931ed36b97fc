// Splits one matmul over threads for benchmarks, with plain or quantized weights.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_BINDINGS_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_BINDINGS_H_

#include "plugins/matmul/kernel.h"
#include "plugins/matmul/pack.h"
#include "runtime/bindings/timed.h"

namespace tensorwright {

// Sets what one thread computes of a matmul: all rows of a share of the panels or, with by_rows, all panels
// of a share of the rows.
inline void take_share(tw_matmul_args* a, int rows, int panels, int pair, int thread, int threads,
                       bool by_rows) {
  const int parts = by_rows ? rows : panels / pair;
  const int grain = by_rows ? TW_MATMUL_ROW_BLOCK : TW_MATMUL_PANEL_BLOCK / pair;
  auto cut = [&](int t) { return t == threads ? parts : parts * t / threads / grain * grain; };
  const int begin = cut(thread), end = cut(thread + 1);
  a->rows = by_rows ? end - begin : rows;
  a->panel_begin = by_rows ? 0 : begin * pair;
  a->panel_end = by_rows ? panels : end * pair;
}

// Returns the first row of a thread's share.
inline int first_row(int rows, int thread, int threads, bool by_rows) {
  return by_rows ? rows * thread / threads / TW_MATMUL_ROW_BLOCK * TW_MATMUL_ROW_BLOCK : 0;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_BINDINGS_H_
