// weight_only_matmul, the reference in plain C: one accumulator per output and group, K ascending.
#include <math.h>

#include "plugins/matmul/scalar_finish.h"
#include "plugins/quantized_matmul/decode.h"
#include "plugins/weight_only_matmul/kernel.h"

namespace {

float element(int dtype, const void* data, int64_t at) {
  return dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)data)[at]) : ((const float*)data)[at];
}

// Computes the sums of a row and the 16 lanes of a panel.
void panel_dot(const tw_weight_only_matmul_args* a, int x_dtype, int64_t row, int64_t panel,
               float acc[TW_LANES]) {
  const int dtype = a->w_dtype;
  const int64_t k = a->matmul.k, group = a->group, size = tw_quantized_group(k, group);
  const char* w = (const char*)a->matmul.w + panel * tw_quantized_panel_bytes(dtype, k, group);
  for (int lane = 0; lane < TW_LANES; ++lane) acc[lane] = 0.0f;
  for (int64_t i = 0; i < tw_quantized_groups(k, group); ++i) {
    const char* values = w + tw_quantized_group_offset(dtype, k, group, i);
    const char* zeros = w + tw_quantized_zero_offset(dtype, k, group, i);
    const char* scales = w + tw_quantized_scale_offset(dtype, k, group, i);
    float dot[TW_LANES] = {};
    for (int64_t e = 0; e < size && i * size + e < k; ++e) {
      const float x = element(x_dtype, a->matmul.x, row * a->matmul.x_stride + i * size + e);
      for (int64_t lane = 0; lane < TW_LANES; ++lane)
        dot[lane] = fmaf(x, tw_quantized_number(dtype, values, zeros, e, lane), dot[lane]);
    }
    for (int64_t lane = 0; lane < TW_LANES; ++lane) {
      const float scale = tw_quantized_scale(dtype, scales, group, lane);
      acc[lane] = group == 0 ? dot[lane] * scale : fmaf(dot[lane], scale, acc[lane]);
    }
  }
}

void matmul(const tw_weight_only_matmul_args* a, int x_dtype) {
  for_outputs(&a->matmul,
              [=](int64_t row, int64_t panel, float* acc) { panel_dot(a, x_dtype, row, panel, acc); });
}

}  // namespace

extern "C" void tw_weight_only_matmul_f32_scalar(const tw_weight_only_matmul_args* a) { matmul(a, TW_F32); }
extern "C" void tw_weight_only_matmul_bf16_scalar(const tw_weight_only_matmul_args* a) { matmul(a, TW_BF16); }
