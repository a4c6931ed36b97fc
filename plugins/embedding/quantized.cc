// embedding from a quantized table, in plain C for every instruction set, because a token takes few bytes.
#include "plugins/embedding/kernel.h"
#include "plugins/quantized_matmul/decode.h"

namespace {

template <int kDtype>
void embed(const tw_embedding_args* a) {
  const int64_t size = tw_quantized_group(a->width, a->group);
  const int64_t panel_bytes = tw_quantized_panel_bytes(kDtype, a->width, a->group);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const char* panel = (const char*)a->table + a->ids[t] / TW_LANES * panel_bytes;
    const int64_t lane = a->ids[t] % TW_LANES;
    for (int64_t i = 0; i < tw_quantized_groups(a->width, a->group); ++i) {
      const char* scales = panel + tw_quantized_scale_offset(kDtype, a->width, a->group, i);
      const float scale = tw_has_steps(kDtype) ? ((const float*)panel)[lane]
                                               : tw_quantized_scale(kDtype, scales, a->group, lane);
      const char* zeros = panel + tw_quantized_zero_offset(kDtype, a->width, a->group, i);
      const char* values = panel + tw_quantized_group_offset(kDtype, a->width, a->group, i);
      float* y = a->y + t * a->y_stride + i * size;
      for (int64_t k = 0; k < size && i * size + k < a->width; ++k) {
        const float weight = tw_has_steps(kDtype) ? (float)tw_stepped_weight(values, scales, zeros, k, lane)
                                                  : tw_quantized_number(kDtype, values, zeros, k, lane);
        y[k] = weight * scale * a->scale;
      }
    }
  }
}

}  // namespace

#define TW_EMBEDDING(dtype, kind, name) \
  extern "C" void tw_embedding_##kind##_scalar(const tw_embedding_args* a) { embed<dtype>(a); }
TW_FOR_EACH_QUANTIZED(TW_EMBEDDING)
TW_EMBEDDING(TW_FP8, fp8, "fp8")
#undef TW_EMBEDDING
