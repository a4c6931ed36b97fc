// weight_only_matmul: y = epilogue(x * w^T + bias) + residual. w is quantized in panels
// (quantized_matmul/layout.h), and x keeps its type.
//
//   a panel's numbers without their scales are exact in bfloat16, so they are multiplied as they are:
//   dot = sum over the group of x * w, one fp32 accumulator per output, K ascending
//   grouped:     acc = fma(dot, w_scale, acc), groups ascending
//   whole rows:  acc = dot * w_scale
//
// Bias, activation and residual are those of matmul/kernel.h, and so is the arithmetic inside a group: fp32
// kernels give the same bits on every instruction set, bf16 dot product instructions need not.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNEL_H_

#include "plugins/matmul/kernel.h"
#include "plugins/quantized_matmul/layout.h"

typedef struct tw_weight_only_matmul_args {
  tw_matmul_args matmul;  // w: panels of quantized_matmul/layout.h
  int32_t w_dtype;        // one that tw_codec knows
  int32_t group;          // 0: whole rows
} tw_weight_only_matmul_args;

typedef void (*tw_weight_only_matmul_fn)(const tw_weight_only_matmul_args*);

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNEL_H_
