// quantized_matmul: y = epilogue(x * w^T + bias) + residual. w is quantized in panels (layout.h), and
// tw_quantize_rows quantizes x to int8 with the same groups.
//
//   group sums are exact:  dot = sum over the group of x_q * w_q, in int32
//   grouped:     acc = fma(float(dot), x_scale * w_scale, acc), groups ascending
//   whole rows, and groups with steps under one scale for each row:
//                acc = float(dot) * (x_scale * w_scale), dot over the whole row
//
// Bias, activation and residual are those of plugins/matmul/kernel.h. Every instruction set gives these bits.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNEL_H_

#include "plugins/matmul/kernel.h"
#include "plugins/quantized_matmul/layout.h"

typedef struct tw_quantized_matmul_args {
  tw_matmul_args matmul;  // x: [rows, tw_quantized_row(k, group)] int8; w: panels of layout.h
  int32_t group;          // of the weights; 0: whole rows
  const float* x_scale;   // [tw_activation_groups(dtype of w, k, group), rows]
  const int32_t* x_sum;   // the same: tw_sum_factor(dtype of w) times the sum of x over the group
  int64_t group_stride;   // elements between groups of x_scale and of x_sum
} tw_quantized_matmul_args;

// Quantizes x [rows, k] to int8 in [-127, 127], with a scale and a sum per row and group:
//   scale = max|x| / 127,  q = rint(x * (127 / max|x|)),  all 0 where max|x| is 0,  sum = factor * sum of q.
// Elements past k are 0. A group with an infinity or a NaN gets the scale NaN, so that results are NaN.
typedef struct tw_quantize_rows_args {
  int32_t rows, k;
  int32_t size;     // elements that share a scale: tw_activation_group(dtype of w, k, group of w)
  int32_t x_dtype;  // TW_F32 or TW_BF16
  const void* x;
  int64_t x_stride;  // elements
  int8_t* q;         // [rows, k with every group at full length]
  int64_t q_stride;  // elements
  float* scale;      // [groups, rows]
  int32_t* sum;      // [groups, rows]
  int64_t group_stride;
  int32_t factor;  // tw_sum_factor(dtype of the weights)
} tw_quantize_rows_args;

// Quantizes up to 16 rows of weights into one panel of layout.h, by the range search of quantize.py.
typedef struct tw_quantize_weights_args {
  int32_t dtype;     // one that tw_codec knows
  int32_t w_dtype;   // TW_F32 or TW_BF16
  int64_t group;     // 0: whole rows
  int64_t rows, k;   // rows of the panel from `rows` to 15 are zeros
  const void* w;     // [rows, k]
  int64_t w_stride;  // elements
  void* panel;       // must be zeros before the call
  float* x;          // scratch [tw_quantized_group(k, group), 16]
  double* error;     // the sum of squared errors is added to it
  double* weight;    // the sum of squared weights is added to it
  int32_t* finite;   // set to 0 if a weight is infinite or NaN; the panel means nothing then
} tw_quantize_weights_args;

typedef void (*tw_quantize_weights_fn)(const tw_quantize_weights_args*);
typedef void (*tw_quantized_matmul_fn)(const tw_quantized_matmul_args*);
typedef void (*tw_quantize_rows_fn)(const tw_quantize_rows_args*);

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNEL_H_
