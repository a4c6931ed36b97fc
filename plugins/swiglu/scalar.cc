// swiglu, the reference in plain C.
#include "plugins/common/bf16.h"
#include "plugins/common/tanh.h"
#include "plugins/swiglu/kernel.h"

extern "C" void tw_swiglu_scalar(const tw_swiglu_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* gate = a->x + row * a->x_stride;
    const float* up = gate + a->width;
    for (int64_t c = 0; c < a->width; ++c) {
      const float value = tw_activate(a->activation, gate[c]) * up[c];
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[row * a->y_stride + c] = tw_f32_to_bf16(value);
      } else {
        ((float*)a->y)[row * a->y_stride + c] = value;
      }
    }
  }
}
