// elementwise for AVX-512: four registers of columns go through the program together, so that a byte of it is
// read once for 64 columns.
#include "plugins/common/x86_avx512.h"

#include "plugins/common/x86_avx512_tanh.h"
#include "plugins/elementwise/kernel.h"

namespace {

enum { kRegisters = 4, kColumns = kRegisters * TW_LANES };

inline __m512 binary(int code, __m512 a, __m512 b) {
  switch (code) {
    case TW_EW_ADD:
      return _mm512_add_ps(a, b);
    case TW_EW_SUB:
      return _mm512_sub_ps(a, b);
    case TW_EW_MUL:
      return _mm512_mul_ps(a, b);
    case TW_EW_DIV:
      return _mm512_div_ps(a, b);
    case TW_EW_MAX:
      return _mm512_max_ps(a, b);
    case TW_EW_MIN:
      return _mm512_min_ps(a, b);
  }
  return a;  // no other code passes the plan's check
}

inline __m512 unary(int code, __m512 a) {
  switch (code) {
    case TW_EW_NEG:
      return tw_negate_avx512(a);
    case TW_EW_ABS:
      return _mm512_abs_ps(a);
    case TW_EW_SQUARE:
      return _mm512_mul_ps(a, a);
    case TW_EW_SQRT:
      return _mm512_sqrt_ps(a);
    case TW_EW_RSQRT:
      return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(a));
    case TW_EW_EXP:
      return tw_exp_avx512(a);
    case TW_EW_TANH:
      return tw_tanh_avx512(a);
    case TW_EW_SIGMOID:
      return tw_sigmoid_avx512(a);
    case TW_EW_SILU:
      return tw_silu_avx512(a);
    case TW_EW_RELU:
      return _mm512_max_ps(a, _mm512_setzero_ps());
    case TW_EW_GELU_TANH:
      return tw_gelu_tanh_avx512(a);
    case TW_EW_GELU_ERF:
      return tw_gelu_erf_avx512(a);
    case TW_EW_ERF:
      return tw_erf_avx512(a);
  }
  return a;  // no other code passes the plan's check
}

inline __m512 operand(const tw_elementwise_args* a, int code, int64_t row, int64_t c, __mmask16 lanes) {
  if (code >= TW_EW_C0) return _mm512_set1_ps(a->constants[code - TW_EW_C0]);
  if (code == TW_EW_W) return _mm512_maskz_loadu_ps(lanes, a->w + c);
  const int i = code - TW_EW_X0;
  return _mm512_maskz_loadu_ps(lanes, a->x[i] + row * a->x_stride[i] + c);
}

inline void evaluate(const tw_elementwise_args* a, int64_t row, int64_t c) {
  __m512 stack[TW_EW_STACK][kRegisters];
  int top = -1;
  for (int i = 0; i < TW_EW_BYTES && a->code[i] != TW_EW_END; ++i) {
    const int code = a->code[i];
    if (tw_ew_is_operand(code)) {
      ++top;
      for (int r = 0; r < kRegisters; ++r) {
        const int64_t at = c + r * TW_LANES;
        stack[top][r] = operand(a, code, row, at, tw_lanes_avx512(a->width - at));
      }
    } else if (tw_ew_is_binary(code)) {
      --top;
      for (int r = 0; r < kRegisters; ++r) stack[top][r] = binary(code, stack[top][r], stack[top + 1][r]);
    } else {
      for (int r = 0; r < kRegisters; ++r) stack[top][r] = unary(code, stack[top][r]);
    }
  }
  for (int r = 0; r < kRegisters; ++r) {
    const int64_t at = c + r * TW_LANES;
    const __mmask16 lanes = tw_lanes_avx512(a->width - at);
    tw_store_avx512(a->y, a->y_dtype, row * a->y_stride + at, lanes, stack[0][r]);
  }
}

}  // namespace

extern "C" void tw_elementwise_avx512(const tw_elementwise_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t c = 0; c < a->width; c += kColumns) evaluate(a, row, c);
  }
}
