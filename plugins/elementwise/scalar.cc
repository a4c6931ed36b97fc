// elementwise, the reference in plain C: one column at a time.
#include "plugins/common/bf16.h"
#include "plugins/common/softplus.h"
#include "plugins/common/tanh.h"
#include "plugins/elementwise/kernel.h"

namespace {

inline float binary(int code, float a, float b) {
  switch (code) {
    case TW_EW_ADD:
      return a + b;
    case TW_EW_SUB:
      return a - b;
    case TW_EW_MUL:
      return a * b;
    case TW_EW_DIV:
      return a / b;
    case TW_EW_MAX:
      return a > b ? a : b;
    case TW_EW_MIN:
      return a < b ? a : b;
  }
  return a;  // no other code passes the plan's check
}

inline float unary(int code, float a) {
  switch (code) {
    case TW_EW_NEG:
      return -a;
    case TW_EW_ABS:
      return fabsf(a);
    case TW_EW_SQUARE:
      return a * a;
    case TW_EW_SQRT:
      return sqrtf(a);
    case TW_EW_RSQRT:
      return 1.0f / sqrtf(a);
    case TW_EW_EXP:
      return tw_exp(a);
    case TW_EW_TANH:
      return tw_tanh(a);
    case TW_EW_SIGMOID:
      return tw_sigmoid(a);
    case TW_EW_SILU:
      return tw_silu(a);
    case TW_EW_RELU:
      return a > 0.0f ? a : 0.0f;
    case TW_EW_GELU_TANH:
      return tw_gelu_tanh(a);
    case TW_EW_GELU_ERF:
      return tw_gelu_erf(a);
    case TW_EW_ERF:
      return tw_erf(a);
    case TW_EW_SOFTPLUS:
      return tw_softplus(a);
  }
  return a;  // no other code passes the plan's check
}

float operand(const tw_elementwise_args* a, int code, int64_t row, int64_t c) {
  if (code >= TW_EW_C0) return a->constants[code - TW_EW_C0];
  if (code == TW_EW_W) return a->w[c];
  const int i = code - TW_EW_X0;
  return a->x[i][row * a->x_stride[i] + c];
}

float evaluate(const tw_elementwise_args* a, int64_t row, int64_t c) {
  float stack[TW_EW_STACK];
  int top = -1;
  for (int i = 0; i < TW_EW_BYTES && a->code[i] != TW_EW_END; ++i) {
    const int code = a->code[i];
    if (tw_ew_is_operand(code)) {
      stack[++top] = operand(a, code, row, c);
    } else if (tw_ew_is_binary(code)) {
      --top;
      stack[top] = binary(code, stack[top], stack[top + 1]);
    } else {
      stack[top] = unary(code, stack[top]);
    }
  }
  return stack[0];
}

}  // namespace

extern "C" void tw_elementwise_scalar(const tw_elementwise_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t c = 0; c < a->width; ++c) {
      const float value = evaluate(a, row, c);
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[row * a->y_stride + c] = tw_f32_to_bf16(value);
      } else {
        ((float*)a->y)[row * a->y_stride + c] = value;
      }
    }
  }
}
