// The reference rms_norm: its order of operations is the definition that every other instruction set repeats.
#include <math.h>
#include <stdint.h>

#include "plugins/common/bf16.h"
#include "plugins/rms_norm/kernel.h"

namespace tensorwright {
namespace {

// Lane i adds lane i + 8, then i + 4, i + 2 and i + 1, in the order of a vector reduction.
float tree_sum(float* lanes) {
  for (int step = TW_LANES / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

}  // namespace

void rms_norm_scalar(const tw_rms_norm_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* x = a->x + row * a->x_stride;
    float lanes[TW_LANES] = {0};
    if (a->residual) {
      const float* residual = a->residual + row * a->residual_stride;
      float* sum = a->sum + row * a->sum_stride;
      for (int32_t c = 0; c < a->width; ++c) sum[c] = x[c] + residual[c];
      x = sum;
    }
    for (int32_t c = 0; c < a->width; ++c) lanes[c % TW_LANES] = fmaf(x[c], x[c], lanes[c % TW_LANES]);
    const float inverse = 1.0f / sqrtf(tree_sum(lanes) / (float)a->width + a->eps);
    for (int32_t c = 0; c < a->width; ++c) {
      const float y = (x[c] * inverse) * (a->w[c] + a->weight_offset);
      const int64_t at = row * a->y_stride + c;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[at] = tw_f32_to_bf16(y);
      } else {
        ((float*)a->y)[at] = y;
      }
    }
  }
}

}  // namespace tensorwright
