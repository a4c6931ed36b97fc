// causal_conv: each channel of one sequence is convolved with its last W inputs. The state holds the W - 1
// inputs before the first token; the kernel leaves there those before the next one.
#ifndef TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNEL_H_

#include "plugins/common/kernel_types.h"

// Plans store these numbers. op.py has the same table.
enum { TW_CONV_NONE = 0, TW_CONV_SILU = 1, TW_CONV_ACTIVATIONS = 2 };
enum { TW_CONV_MAX_WIDTH = 16 };

typedef struct tw_causal_conv_args {
  int32_t tokens;      // of the sequence, at least 1
  int32_t width;       // W
  int32_t channels;    // C
  int32_t begin, end;  // the channels to compute
  int32_t fresh;       // whether the inputs before the first token are zero, whatever the state holds
  int32_t activation;
  int32_t y_dtype;    // TW_F32 or TW_BF16
  const float* x;     // [tokens, C]
  int64_t x_stride;   // elements
  const float* w;     // [W, C]
  const float* bias;  // [C] or NULL
  float* state;       // [W - 1, C]
  void* y;            // [tokens, C]
  int64_t y_stride;   // elements
} tw_causal_conv_args;

typedef void (*tw_causal_conv_fn)(const tw_causal_conv_args*);

#endif  // TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNEL_H_
