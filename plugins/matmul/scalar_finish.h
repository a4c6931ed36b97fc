// The steps after the sums of a float or quantized matmul, in plain C: addend, bias, activation, residual
// and rounding.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_SCALAR_FINISH_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_SCALAR_FINISH_H_

#include "plugins/common/bf16.h"
#include "plugins/common/tanh.h"
#include "plugins/matmul/kernel.h"

namespace {  // each including file gets its own copy

// Returns a lane's sum with the row's addend and the bias. It is never called for lanes past n, so the bias
// need not be padded.
float biased(const tw_matmul_args* a, int64_t row, int64_t panel, int64_t lane, float sum) {
  const float* addend = a->addends ? a->addends[row] : NULL;
  if (addend) sum += addend[tw_addend_at(a, panel) + lane];
  return a->bias ? sum + a->bias[panel * TW_LANES + lane] : sum;
}

void store(const tw_matmul_args* a, int64_t row, int64_t column, float value) {
  if (a->residual) value += a->residual[row * a->residual_stride + column];
  const int64_t at = row * a->y_stride + column;
  if (a->y_dtype == TW_BF16) {
    ((uint16_t*)a->y)[at] = tw_f32_to_bf16(value);
  } else {
    ((float*)a->y)[at] = value;
  }
}

// Computes every output of a call. dot(row, panel, sums) writes the 16 sums of a row and a panel.
template <typename Dot>
void for_outputs(const tw_matmul_args* a, Dot dot) {
  const int step = tw_epilogue_panels(a->epilogue);
  float acc[TW_LANES], up[TW_LANES];
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += step) {
      const int64_t column = panel / step * TW_LANES;
      dot(row, panel, acc);
      if (step == 2) dot(row, panel + 1, up);
      for (int64_t lane = 0; lane < TW_LANES && column + lane < a->n; ++lane) {
        float value = biased(a, row, panel, lane, acc[lane]);
        if (step == 2)
          value = tw_activate(a->epilogue - 1, value) * biased(a, row, panel + 1, lane, up[lane]);
        store(a, row, column + lane, value);
      }
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_SCALAR_FINISH_H_
