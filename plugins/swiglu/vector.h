// swiglu for an instruction set `Set` (Avx2, Avx512 or Neon).
#ifndef TENSORWRIGHT_PLUGINS_SWIGLU_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_SWIGLU_VECTOR_H_

#include "plugins/common/vector_activation.h"
#include "plugins/swiglu/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set, int kActivation>
void swiglu_rows(const tw_swiglu_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    const float* gate = a->x + row * a->x_stride;
    const float* up = gate + a->width;
    for (int64_t c = 0; c < a->width; c += Set::kLanes) {
      const int64_t count = a->width - c;
      const auto g = activate_lanes<Set, kActivation>(Set::load(gate + c, count));
      Set::store(a->y, a->y_dtype, row * a->y_stride + c, count, Set::mul(g, Set::load(up + c, count)));
    }
  }
}

template <typename Set>
void swiglu(const tw_swiglu_args* a) {
  static const tw_swiglu_fn by_activation[TW_ACTIVATIONS] = {
      swiglu_rows<Set, TW_SILU>, swiglu_rows<Set, TW_GELU_TANH>, swiglu_rows<Set, TW_GELU_ERF>,
      swiglu_rows<Set, TW_RELU>};
  by_activation[a->activation](a);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_SWIGLU_VECTOR_H_
