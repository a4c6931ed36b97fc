// matmul, the reference in plain C: one accumulator per output, K ascending. Every other entry is tested
// against it.
#include <math.h>

#include "plugins/matmul/scalar_finish.h"

namespace {

float element(int dtype, const void* data, int64_t at) {
  return dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)data)[at]) : ((const float*)data)[at];
}

// Computes the sum over k of x[k] * w[lane, k] for the 16 lanes of a panel.
void panel_dot(const tw_matmul_args* a, int x_dtype, int dtype, int64_t row, int64_t panel,
               float acc[TW_LANES]) {
  const char* w = (const char*)a->w + (size_t)panel * tw_panel_bytes(dtype, (size_t)a->k);
  const int64_t group = tw_k_group(dtype);
  for (int lane = 0; lane < TW_LANES; ++lane) acc[lane] = 0.0f;
  for (int64_t k = 0; k < a->k; ++k) {
    const float x = element(x_dtype, a->x, row * a->x_stride + k);
    const int64_t at = k / group * (TW_LANES * group) + k % group;
    for (int lane = 0; lane < TW_LANES; ++lane)
      acc[lane] = fmaf(x, element(dtype, w, at + lane * group), acc[lane]);
  }
}

void matmul(const tw_matmul_args* a, int x_dtype, int dtype) {
  for_outputs(a,
              [=](int64_t row, int64_t panel, float* acc) { panel_dot(a, x_dtype, dtype, row, panel, acc); });
}

}  // namespace

extern "C" void tw_matmul_f32_scalar(const tw_matmul_args* a) { matmul(a, TW_F32, TW_F32); }
extern "C" void tw_matmul_bf16_scalar(const tw_matmul_args* a) { matmul(a, TW_BF16, TW_BF16); }
extern "C" void tw_matmul_f32_by_bf16_scalar(const tw_matmul_args* a) { matmul(a, TW_F32, TW_BF16); }
