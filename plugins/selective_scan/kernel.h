// selective_scan: the scan of some channels of one sequence over its tokens, as op.py defines it.
#ifndef TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNEL_H_

#include "plugins/common/kernel_types.h"

// Channels are taken in panels of TW_LANES. What has a number per channel and state lies in panels
// [ceil(C / TW_LANES), N, TW_LANES], so that the states of a few channels are close together.
typedef struct tw_selective_scan_args {
  int32_t tokens;            // of the sequence, at least 1
  int32_t channels, states;  // C and N
  int32_t begin, end;        // the channels to compute; begin is a multiple of TW_LANES
  int32_t fresh;             // whether the state before the first token is zero, whatever `state` holds
  int32_t y_dtype;           // TW_F32 or TW_BF16
  const float* x;            // [tokens, C]
  const float* dt;           // [tokens, C]
  const float* b;            // [tokens, N]
  const float* c;            // [tokens, N]
  int64_t x_stride, dt_stride, b_stride, c_stride;  // elements
  const float* a;                                   // panels; anything in lanes beyond the channels
  const float* d;                                   // [C]
  const float* dt_bias;                             // [C]
  float* state;                                     // panels
  void* y;                                          // [tokens, C]
  int64_t y_stride;                                 // elements
} tw_selective_scan_args;

typedef void (*tw_selective_scan_fn)(const tw_selective_scan_args*);

#endif  // TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNEL_H_
