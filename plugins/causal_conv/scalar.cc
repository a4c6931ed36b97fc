// causal_conv, the reference in plain C.
#include "plugins/causal_conv/kernel.h"
#include "plugins/common/bf16.h"
#include "plugins/common/exp.h"

namespace {

// Returns the input of token t, which may be before the first one.
float input(const tw_causal_conv_args* a, int64_t t, int64_t c) {
  if (t >= 0) return a->x[t * a->x_stride + c];
  return a->fresh ? 0.0f : a->state[(t + a->width - 1) * a->channels + c];
}

}  // namespace

extern "C" void tw_causal_conv_scalar(const tw_causal_conv_args* a) {
  for (int64_t c = a->begin; c < a->end; ++c) {
    for (int64_t t = 0; t < a->tokens; ++t) {
      float sum = a->bias ? a->bias[c] : 0.0f;
      for (int64_t j = 0; j < a->width; ++j) {
        sum = fmaf(a->w[j * a->channels + c], input(a, t - (a->width - 1) + j, c), sum);
      }
      if (a->activation == TW_CONV_SILU) sum = tw_silu(sum);
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[t * a->y_stride + c] = tw_f32_to_bf16(sum);
      } else {
        ((float*)a->y)[t * a->y_stride + c] = sum;
      }
    }
    // Row i of the new state is input tokens - (W - 1) + i, so no row is read after it is written.
    for (int64_t i = 0; i < a->width - 1; ++i) {
      a->state[i * a->channels + c] = input(a, a->tokens - (a->width - 1) + i, c);
    }
  }
}
