// embedding from a quantized table, in plain C for every instruction set, because a token takes few bytes.
#include "plugins/common/bf16.h"
#include "plugins/embedding/kernel.h"
#include "plugins/quantized_matmul/layout.h"

namespace {

float scale_of(const char* panel, int dtype, int64_t width, int64_t group, int64_t i, int64_t lane) {
  const char* scales = panel + tw_quantized_scale_offset(dtype, width, group, i);
  return group == 0 ? ((const float*)scales)[lane] : tw_bf16_to_f32(((const uint16_t*)scales)[lane]);
}

void embed(const tw_embedding_args* a, int dtype) {
  const int64_t size = tw_quantized_group(a->width, a->group);
  const int64_t panel_bytes = tw_quantized_panel_bytes(dtype, a->width, a->group);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* panel = (const char*)a->table + a->ids[t] / TW_LANES * panel_bytes;
    const int64_t lane = a->ids[t] % TW_LANES;
    for (int64_t i = 0; i < tw_quantized_groups(a->width, a->group); ++i) {
      const float scale = scale_of(panel, dtype, a->width, a->group, i, lane);
      const char* values = panel + tw_quantized_group_offset(dtype, a->width, a->group, i) + lane * 4;
      float* y = a->y + t * a->y_stride + i * size;
      for (int64_t k = 0; k < size && i * size + k < a->width; ++k) {
        const int value = dtype == TW_I8 ? ((const int8_t*)values)[k / 4 * 64 + k % 4]
                          : k % 8 < 4    ? (((const uint8_t*)values)[k / 8 * 64 + k % 4] & 15) - 8
                                         : (((const uint8_t*)values)[k / 8 * 64 + k % 4] >> 4) - 8;
        y[k] = (float)value * scale * a->scale;
      }
    }
  }
}

}  // namespace

extern "C" void tw_embedding_i8_scalar(const tw_embedding_args* a) { embed(a, TW_I8); }
extern "C" void tw_embedding_i4_scalar(const tw_embedding_args* a) { embed(a, TW_I4); }
