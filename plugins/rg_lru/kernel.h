// rg_lru: the real-gated linear recurrent unit of some channels of one sequence over its tokens, as
// carried.py defines it.
#ifndef TENSORWRIGHT_PLUGINS_RG_LRU_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_RG_LRU_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_rg_lru_args {
  int32_t tokens;      // of the sequence, at least 1
  int32_t begin, end;  // the channels to compute; begin is a multiple of TW_LANES
  int32_t fresh;       // whether the first token has no state before it, whatever `state` holds
  int32_t y_dtype;     // TW_F32 or TW_BF16
  const float* x;      // [tokens, C]
  const float* input;  // [tokens, C], before the bias and the sigmoid
  const float* decay;  // [tokens, C], before the bias and the sigmoid
  int64_t x_stride, input_stride, decay_stride;  // elements
  const float* rate;                             // [C]: the logarithm of a where the gate is 1
  const float* input_bias;                       // [C]
  const float* decay_bias;                       // [C]
  float* state;                                  // [C]
  void* y;                                       // [tokens, C]
  int64_t y_stride;                              // elements
} tw_rg_lru_args;

typedef void (*tw_rg_lru_fn)(const tw_rg_lru_args*);

#endif  // TENSORWRIGHT_PLUGINS_RG_LRU_KERNEL_H_
