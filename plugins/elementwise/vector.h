// elementwise for an instruction set `Set` (Avx2, Avx512 or Neon): four registers of columns go through the
// program together, so that each byte of the program is read once for all four.
#ifndef TENSORWRIGHT_PLUGINS_ELEMENTWISE_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_ELEMENTWISE_VECTOR_H_

#include "plugins/common/vector_softplus.h"
#include "plugins/common/vector_tanh.h"
#include "plugins/elementwise/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int kRegisters = 4;

template <typename Set, typename Vector = typename Set::Vector>
inline Vector binary(int code, Vector a, Vector b) {
  switch (code) {
    case TW_EW_ADD:
      return Set::add(a, b);
    case TW_EW_SUB:
      return Set::sub(a, b);
    case TW_EW_MUL:
      return Set::mul(a, b);
    case TW_EW_DIV:
      return Set::div(a, b);
    case TW_EW_MAX:
      return Set::max(a, b);
    case TW_EW_MIN:
      return Set::min(a, b);
  }
  return a;  // no other code passes the plan's check
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector unary(int code, Vector a) {
  switch (code) {
    case TW_EW_NEG:
      return Set::negate(a);
    case TW_EW_ABS:
      return Set::abs(a);
    case TW_EW_SQUARE:
      return Set::mul(a, a);
    case TW_EW_SQRT:
      return Set::sqrt(a);
    case TW_EW_RSQRT:
      return Set::div(Set::all(1.0f), Set::sqrt(a));
    case TW_EW_EXP:
      return Set::exp(a);
    case TW_EW_TANH:
      return tanh_lanes<Set>(a);
    case TW_EW_SIGMOID:
      return sigmoid_lanes<Set>(a);
    case TW_EW_SILU:
      return Set::silu(a);
    case TW_EW_RELU:
      return Set::max(a, Set::all(0.0f));
    case TW_EW_GELU_TANH:
      return gelu_tanh_lanes<Set>(a);
    case TW_EW_GELU_ERF:
      return gelu_erf_lanes<Set>(a);
    case TW_EW_ERF:
      return erf_lanes<Set>(a);
    case TW_EW_SOFTPLUS:
      return softplus_lanes<Set>(a);
  }
  return a;  // no other code passes the plan's check
}

template <typename Set>
inline typename Set::Vector operand(const tw_elementwise_args* a, int code, int64_t row, int64_t c) {
  if (code >= TW_EW_C0) return Set::all(a->constants[code - TW_EW_C0]);
  if (code == TW_EW_W) return Set::load(a->w + c, a->width - c);
  const int i = code - TW_EW_X0;
  return Set::load(a->x[i] + row * a->x_stride[i] + c, a->width - c);
}

template <typename Set>
inline void evaluate(const tw_elementwise_args* a, int64_t row, int64_t c) {
  typename Set::Vector stack[TW_EW_STACK][kRegisters];
  int top = -1;
  for (int i = 0; i < TW_EW_BYTES && a->code[i] != TW_EW_END; ++i) {
    const int code = a->code[i];
    if (tw_ew_is_operand(code)) {
      ++top;
      for (int r = 0; r < kRegisters; ++r) stack[top][r] = operand<Set>(a, code, row, c + r * Set::kLanes);
    } else if (tw_ew_is_binary(code)) {
      --top;
      for (int r = 0; r < kRegisters; ++r)
        stack[top][r] = binary<Set>(code, stack[top][r], stack[top + 1][r]);
    } else {
      for (int r = 0; r < kRegisters; ++r) stack[top][r] = unary<Set>(code, stack[top][r]);
    }
  }
  for (int r = 0; r < kRegisters; ++r) {
    const int64_t at = c + r * Set::kLanes;
    Set::store(a->y, a->y_dtype, row * a->y_stride + at, a->width - at, stack[0][r]);
  }
}

template <typename Set>
inline void evaluate_rows(const tw_elementwise_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t c = 0; c < a->width; c += kRegisters * Set::kLanes) evaluate<Set>(a, row, c);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_ELEMENTWISE_VECTOR_H_
