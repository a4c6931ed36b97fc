// rg_lru, the reference in plain C.
#include "plugins/common/bf16.h"
#include "plugins/common/tanh.h"
#include "plugins/rg_lru/kernel.h"

extern "C" void tw_rg_lru_scalar(const tw_rg_lru_args* a) {
  for (int64_t i = a->begin; i < a->end; ++i) {
    float h = a->fresh ? 0.0f : a->state[i];
    for (int64_t t = 0; t < a->tokens; ++t) {
      const float gate = tw_sigmoid(a->decay[t * a->decay_stride + i] + a->decay_bias[i]);
      const float log_a = gate * a->rate[i];
      // 1 - exp(2 x) = -2 tanh(x) / (1 - tanh(x)), which does not cancel where x is near 0.
      const float tanh = tw_tanh(log_a), square = (-2.0f * tanh) / (1.0f - tanh);
      const float share = a->fresh && t == 0 ? 1.0f : sqrtf(square);
      const float input = tw_sigmoid(a->input[t * a->input_stride + i] + a->input_bias[i]);
      h = fmaf(tw_exp(log_a), h, (a->x[t * a->x_stride + i] * input) * share);
      const int64_t at = t * a->y_stride + i;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[at] = tw_f32_to_bf16(h);
      } else {
        ((float*)a->y)[at] = h;
      }
    }
    a->state[i] = h;
  }
}
