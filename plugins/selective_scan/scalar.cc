// selective_scan, the reference in plain C.
#include "plugins/common/bf16.h"
#include "plugins/common/softplus.h"
#include "plugins/selective_scan/kernel.h"

extern "C" void tw_selective_scan_scalar(const tw_selective_scan_args* a) {
  for (int64_t i = a->begin; i < a->end; ++i) {
    const int64_t first = i / TW_LANES * TW_LANES * a->states + i % TW_LANES;
    float* state = a->state + first;
    for (int64_t n = 0; a->fresh && n < a->states; ++n) state[n * TW_LANES] = 0.0f;
    for (int64_t t = 0; t < a->tokens; ++t) {
      const float step = tw_softplus(a->dt[t * a->dt_stride + i] + a->dt_bias[i]);
      const float x = a->x[t * a->x_stride + i], input = step * x;
      float sum = a->d[i] * x;
      for (int64_t n = 0; n < a->states; ++n) {
        float* h = state + n * TW_LANES;
        *h = fmaf(*h, tw_exp(step * a->a[first + n * TW_LANES]), input * a->b[t * a->b_stride + n]);
        sum = fmaf(*h, a->c[t * a->c_stride + n], sum);
      }
      const int64_t at = t * a->y_stride + i;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[at] = tw_f32_to_bf16(sum);
      } else {
        ((float*)a->y)[at] = sum;
      }
    }
  }
}
