// swiglu: y = act(gate) * up, where act is silu or another tw_activation, and x holds first the gate columns
// and then the up columns.
#ifndef TENSORWRIGHT_PLUGINS_SWIGLU_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_SWIGLU_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_swiglu_args {
  int32_t rows;
  int32_t width;       // columns of y
  int32_t y_dtype;     // TW_F32 or TW_BF16
  int32_t activation;  // tw_activation
  const float* x;      // [rows, 2 * width]: gate, up
  int64_t x_stride;    // elements
  void* y;             // [rows, width]
  int64_t y_stride;    // elements
} tw_swiglu_args;

typedef void (*tw_swiglu_fn)(const tw_swiglu_args*);

#endif  // TENSORWRIGHT_PLUGINS_SWIGLU_KERNEL_H_
