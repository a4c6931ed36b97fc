// rms_norm: y = s / sqrt(mean(s*s) + eps) * (w + weight_offset), where s is x or, with a residual, x +
// residual.
#ifndef TENSORWRIGHT_PLUGINS_RMS_NORM_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_RMS_NORM_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_rms_norm_args {
  int32_t rows;
  int32_t width;
  float eps;
  float weight_offset;    // 0, or 1 for norms whose weight is stored as a difference from one
  int32_t y_dtype;        // TW_F32 or TW_BF16
  const float* x;         // [rows, width]
  const float* residual;  // [rows, width], or NULL
  const float* w;         // [width]
  float* sum;  // [rows, width] gets x + residual; may be the same memory as x or residual; NULL without one
  void* y;     // [rows, width]
  int64_t x_stride, residual_stride, sum_stride, y_stride;  // elements
} tw_rms_norm_args;

typedef void (*tw_rms_norm_fn)(const tw_rms_norm_args*);

#endif  // TENSORWRIGHT_PLUGINS_RMS_NORM_KERNEL_H_
