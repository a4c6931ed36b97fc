// state_space_scan: the scan of one head of one sequence over its tokens, as op.py defines it.
#ifndef TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_state_space_scan_args {
  int32_t tokens;         // of the sequence, at least 1
  int32_t width, states;  // P and N
  int32_t fresh;          // whether the state before the first token is zero, whatever `state` holds
  int32_t y_dtype;        // TW_F32 or TW_BF16
  float a, d, dt_bias, dt_min, dt_max;
  const float* x;  // [tokens, P], and each token's b [N] and c [N] at the same stride
  const float* b;
  const float* c;
  int64_t x_stride;  // elements
  const float* dt;   // [tokens]
  int64_t dt_stride;
  float* state;               // [N, P]
  void* y;                    // [tokens, P] from element y_begin on
  int64_t y_begin, y_stride;  // elements
} tw_state_space_scan_args;

typedef void (*tw_state_space_scan_fn)(const tw_state_space_scan_args*);

#endif  // TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNEL_H_
