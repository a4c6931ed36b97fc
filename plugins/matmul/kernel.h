// matmul: y[rows, n] = epilogue(x[rows, k] * w[n, k]^T + bias) + residual, with w in packed panels.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_KERNEL_H_

#include "plugins/common/kernel_types.h"

// Plans store these numbers, so new ones are only appended.
enum tw_matmul_epilogue {
  TW_EPILOGUE_NONE = 0,
  // A gated epilogue is 1 + tw_activation. Panels come in pairs (gate, up); column j of the output is
  // act(gate_j) * up_j. n counts output columns.
  TW_EPILOGUE_GATED = 1 + TW_SILU,
  TW_EPILOGUE_LAST = TW_ACTIVATIONS,
};

// Returns the number of panels of w that make one panel of output.
static inline int tw_epilogue_panels(int epilogue) { return epilogue == TW_EPILOGUE_NONE ? 1 : 2; }

// Work is cut for threads at multiples of these. Any cut gives the same bits, but these multiples keep the
// register blocks full.
enum {
  TW_MATMUL_ROW_BLOCK = 6,
  TW_MATMUL_PANEL_BLOCK = 4,
  // Up to this many rows, a call reads each weight from memory once. Work is then cut by panels only, with
  // several blocks of panels per call, because a call fetches the next block while it computes. With more
  // rows, cutting the rows as well costs little.
  TW_MATMUL_FLAT_ROWS = 96,
};

typedef struct tw_matmul_args {
  int32_t rows;         // activation rows to compute
  int32_t k;            // reduction length
  int32_t n;            // output columns of the whole matrix
  int32_t panel_begin;  // weight panels to compute, [panel_begin, panel_end); both even if gated
  int32_t panel_end;
  int32_t epilogue;         // tw_matmul_epilogue
  int32_t y_dtype;          // TW_F32 or TW_BF16
  const void* x;            // [rows, k], the kernel's activation dtype
  int64_t x_stride;         // elements between rows of x
  const void* w;            // [panels], panel 0 of the whole matrix
  const float* bias;        // in panel order, lanes past n not read; or NULL
  const float* residual;    // [rows, n], or NULL
  int64_t residual_stride;  // elements
  void* y;                  // [rows, n]
  int64_t y_stride;         // elements
  // [rows]: what is added to the sums of a row, [panels * 16] floats, or NULL for a row to which nothing is
  // added; NULL if there is no such row. tw_addend_at says where the floats of a panel are.
  const float* const* addends;
} tw_matmul_args;

// Returns where the 16 floats of a panel begin in an addend. They are in the order of the panels. If gated,
// those of all gate panels come first, then those of all up panels.
static inline int64_t tw_addend_at(const tw_matmul_args* a, int64_t panel) {
  if (a->epilogue == TW_EPILOGUE_NONE) return panel * TW_LANES;
  const int64_t columns = (a->n + TW_LANES - 1) / TW_LANES;
  return (panel / 2 + (panel % 2 ? columns : 0)) * TW_LANES;
}

typedef void (*tw_matmul_fn)(const tw_matmul_args*);

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_KERNEL_H_
