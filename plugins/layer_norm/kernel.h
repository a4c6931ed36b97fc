// layer_norm: y = (s - mean) / sqrt(mean((s - mean)^2) + eps) * (w + weight_offset) + b, where s is x or,
// with a residual, x + residual.
#ifndef TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_layer_norm_args {
  int32_t rows;
  int32_t width;
  float eps;
  float weight_offset;    // 0, or 1 for norms whose weight is stored as a difference from one
  int32_t y_dtype;        // TW_F32 or TW_BF16
  const float* x;         // [rows, width]
  const float* residual;  // [rows, width], or NULL
  const float* w;         // [width]
  const float* b;         // [width], or NULL for zeros
  float* sum;  // [rows, width] gets x + residual; may be the same memory as x or residual; NULL without one
  void* y;     // [rows, width]; without a residual it may be the same memory as x
  int64_t x_stride, residual_stride, sum_stride, y_stride;  // elements
} tw_layer_norm_args;

typedef void (*tw_layer_norm_fn)(const tw_layer_norm_args*);

#endif  // TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNEL_H_
