// embedding, the reference in plain C: row ids[t] is lane ids[t] % 16 of panel ids[t] / 16.
#include "plugins/common/bf16.h"
#include "plugins/embedding/kernel.h"

extern "C" void tw_embedding_f32_scalar(const tw_embedding_args* a) {
  const size_t panel_bytes = tw_panel_bytes(TW_F32, (size_t)a->width);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* panel = (const char*)a->table + (size_t)(a->ids[t] / TW_LANES) * panel_bytes;
    const float* from = (const float*)panel + a->ids[t] % TW_LANES;
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; ++c) y[c] = from[c * TW_LANES] * a->scale;
  }
}

extern "C" void tw_embedding_bf16_scalar(const tw_embedding_args* a) {
  const size_t panel_bytes = tw_panel_bytes(TW_BF16, (size_t)a->width);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* panel = (const char*)a->table + (size_t)(a->ids[t] / TW_LANES) * panel_bytes;
    const uint16_t* from = (const uint16_t*)panel + a->ids[t] % TW_LANES * 2;
    float* y = a->y + t * a->y_stride;
    for (int64_t c = 0; c < a->width; ++c)
      y[c] = tw_bf16_to_f32(from[c / 2 * TW_LANES * 2 + c % 2]) * a->scale;
  }
}
