// elementwise: y = program(x0 .. x3, w), column by column. A program is up to 32 bytes for a stack machine
// whose cells are rows of float32: an operand byte pushes, an operation takes one or two cells and pushes its
// result, and the one cell left at the end is y.
#ifndef TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNEL_H_

#include "plugins/common/kernel_types.h"

// Plans store these numbers, so new ones are only appended. op.py has the same table.
enum tw_elementwise_code {
  TW_EW_END = 0,
  TW_EW_X0 = 1,
  TW_EW_X1,
  TW_EW_X2,
  TW_EW_X3,     // [rows, width]
  TW_EW_W = 5,  // [width], the same for every row
  TW_EW_C0 = 6,
  TW_EW_C1,
  TW_EW_C2,
  TW_EW_C3,  // numbers
  TW_EW_ADD = 16,
  TW_EW_SUB,
  TW_EW_MUL,
  TW_EW_DIV,
  TW_EW_MAX,
  TW_EW_MIN,
  TW_EW_NEG = 32,
  TW_EW_ABS,
  TW_EW_SQUARE,
  TW_EW_SQRT,
  TW_EW_RSQRT,
  TW_EW_EXP,
  TW_EW_TANH,
  TW_EW_SIGMOID,
  TW_EW_SILU,
  TW_EW_RELU,
  TW_EW_GELU_TANH,
  TW_EW_GELU_ERF,
  TW_EW_ERF,
  TW_EW_SOFTPLUS,
};

enum { TW_EW_BYTES = 32, TW_EW_STACK = 8, TW_EW_INPUTS = 4, TW_EW_CONSTANTS = 4 };

static inline int tw_ew_is_operand(int code) { return code >= TW_EW_X0 && code <= TW_EW_C3; }
static inline int tw_ew_is_binary(int code) { return code >= TW_EW_ADD && code <= TW_EW_MIN; }
static inline int tw_ew_is_unary(int code) { return code >= TW_EW_NEG && code <= TW_EW_SOFTPLUS; }

typedef struct tw_elementwise_args {
  int32_t rows, width;
  const uint8_t* code;             // [TW_EW_BYTES], zeros after the program; checked by instruction.cc
  const float* constants;          // [TW_EW_CONSTANTS]
  const float* x[TW_EW_INPUTS];    // [rows, width] each; absent ones NULL
  int64_t x_stride[TW_EW_INPUTS];  // elements
  const float* w;                  // [width] or NULL
  int32_t y_dtype;                 // TW_F32 or TW_BF16
  void* y;                         // [rows, width]; may be one of x
  int64_t y_stride;                // elements
} tw_elementwise_args;

typedef void (*tw_elementwise_fn)(const tw_elementwise_args*);

#endif  // TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNEL_H_
