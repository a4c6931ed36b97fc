// state_space_scan, the reference in plain C.
#include "plugins/common/bf16.h"
#include "plugins/state_space_scan/kernel.h"
#include "plugins/state_space_scan/step.h"

extern "C" void tw_state_space_scan_scalar(const tw_state_space_scan_args* a) {
  for (int64_t p = 0; p < a->width; ++p) {
    for (int64_t n = 0; a->fresh && n < a->states; ++n) a->state[n * a->width + p] = 0.0f;
    for (int64_t t = 0; t < a->tokens; ++t) {
      const float step = tw_scan_step(a, t), decay = tw_exp(step * a->a);
      const float x = a->x[t * a->x_stride + p], input = step * x;
      float sum = 0.0f;
      for (int64_t n = 0; n < a->states; ++n) {
        float* h = a->state + n * a->width + p;
        *h = fmaf(*h, decay, input * a->b[t * a->x_stride + n]);
        sum = fmaf(*h, a->c[t * a->x_stride + n], sum);
      }
      const float y = fmaf(a->d, x, sum);
      const int64_t at = a->y_begin + t * a->y_stride + p;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[at] = tw_f32_to_bf16(y);
      } else {
        ((float*)a->y)[at] = y;
      }
    }
  }
}
