// delta_rule, the reference in plain C.
#include "plugins/common/bf16.h"
#include "plugins/delta_rule/kernel.h"
#include "plugins/delta_rule/step.h"

namespace {

// Sums in 16 lanes: lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
float square_sum(const float* x, int64_t count) {
  float lanes[TW_LANES] = {0};
  for (int64_t i = 0; i < count; ++i) lanes[i % TW_LANES] = fmaf(x[i], x[i], lanes[i % TW_LANES]);
  for (int step = TW_LANES / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

void scale_to(float* to, const float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) to[i] = x[i] * factor;
}

}  // namespace

extern "C" void tw_delta_rule_scalar(const tw_delta_rule_args* a) {
  const float scale = 1.0f / sqrtf((float)a->keys);
  float q[TW_DELTA_MAX_KEYS], k[TW_DELTA_MAX_KEYS], decay[TW_DELTA_MAX_KEYS], kept[TW_DELTA_MAX_KEYS];
  for (int64_t i = 0; a->fresh && i < int64_t{a->keys} * a->width; ++i) a->state[i] = 0.0f;
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float rate = tw_delta_rate(a, t);
    const float *q_row = a->q + t * a->q_stride, *k_row = a->k + t * a->q_stride;
    scale_to(q, q_row, a->keys, tw_delta_inverse(square_sum(q_row, a->keys)) * scale);
    scale_to(k, k_row, a->keys, tw_delta_inverse(square_sum(k_row, a->keys)));
    for (int64_t i = 0; i < a->keys; ++i) {
      decay[i] = i < a->decays ? tw_delta_decay(a, t, i) : decay[0];
      kept[i] = k[i] * decay[i];
    }
    for (int64_t p = 0; p < a->width; ++p) {
      float known = 0.0f, y = 0.0f;
      for (int64_t i = 0; i < a->keys; ++i) known = fmaf(a->state[i * a->width + p], kept[i], known);
      const float change = (a->v[t * a->q_stride + p] - known) * rate;
      for (int64_t i = 0; i < a->keys; ++i) {
        float* h = a->state + i * a->width + p;
        *h = fmaf(k[i], change, decay[i] * *h);
        y = fmaf(*h, q[i], y);
      }
      const int64_t at = a->y_begin + t * a->y_stride + p;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[at] = tw_f32_to_bf16(y);
      } else {
        ((float*)a->y)[at] = y;
      }
    }
  }
}
