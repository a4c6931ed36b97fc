// matmul, the reference in plain C: one accumulator per output, K ascending. Every other entry is tested
// against it.
#include <math.h>

#include "plugins/common/bf16.h"
#include "plugins/common/tanh.h"
#include "plugins/matmul/kernel.h"

namespace {

float element(int dtype, const void* data, int64_t at) {
  return dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)data)[at]) : ((const float*)data)[at];
}

// sum over k of x[k] * w[lane, k] for the 16 lanes of a panel.
void panel_dot(const tw_matmul_args* a, int dtype, int64_t row, int64_t panel, float acc[TW_LANES]) {
  const char* w = (const char*)a->w + (size_t)panel * tw_panel_bytes(dtype, (size_t)a->k);
  const int64_t group = tw_k_group(dtype);
  for (int lane = 0; lane < TW_LANES; ++lane) acc[lane] = 0.0f;
  for (int64_t k = 0; k < a->k; ++k) {
    const float x = element(dtype, a->x, row * a->x_stride + k);
    const int64_t at = k / group * (TW_LANES * group) + k % group;
    for (int lane = 0; lane < TW_LANES; ++lane)
      acc[lane] = fmaf(x, element(dtype, w, at + lane * group), acc[lane]);
  }
}

// A lane's sum with its bias. Lanes past n are never asked for: the bias need not be padded.
float biased(const tw_matmul_args* a, int64_t panel, int64_t lane, float sum) {
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

void matmul(const tw_matmul_args* a, int dtype) {
  const int step = tw_epilogue_panels(a->epilogue);
  float acc[TW_LANES], up[TW_LANES];
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += step) {
      const int64_t column = panel / step * TW_LANES;
      panel_dot(a, dtype, row, panel, acc);
      if (step == 2) panel_dot(a, dtype, row, panel + 1, up);
      for (int64_t lane = 0; lane < TW_LANES && column + lane < a->n; ++lane) {
        float value = biased(a, panel, lane, acc[lane]);
        if (step == 2) value = tw_activate(a->epilogue - 1, value) * biased(a, panel + 1, lane, up[lane]);
        store(a, row, column + lane, value);
      }
    }
  }
}

}  // namespace

extern "C" void tw_matmul_f32_scalar(const tw_matmul_args* a) { matmul(a, TW_F32); }
extern "C" void tw_matmul_bf16_scalar(const tw_matmul_args* a) { matmul(a, TW_BF16); }
