// What the bindings of matmuls share, with plain or quantized weights: operands, and shares of threads.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_BINDINGS_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_BINDINGS_H_

#include <optional>
#include <string>

#include "plugins/matmul/kernel.h"
#include "plugins/matmul/pack.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/bindings/timed.h"

namespace tensorwright {

using OptionalArray = std::optional<Array>;

// Returns the data of a vector of float32; NULL if there is none.
inline const float* floats(const OptionalArray& array, int64_t at_least, const char* what) {
  if (!array) return nullptr;
  require(array_dtype(*array, what) == TW_F32 && array->ndim() == 1 && array->stride(0) == 1 &&
              static_cast<int64_t>(array->size()) >= at_least,
          std::string(what) + " must be a contiguous float32 vector of at least " + std::to_string(at_least));
  return static_cast<const float*>(array->data());
}

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
