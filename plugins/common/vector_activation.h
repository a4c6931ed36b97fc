// The activations of a gate, for an instruction set `Set` (Avx2, Avx512 or Neon). They give the same bits as
// tw_activate.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_VECTOR_ACTIVATION_H_
#define TENSORWRIGHT_PLUGINS_COMMON_VECTOR_ACTIVATION_H_

#include "plugins/common/vector_tanh.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set, int kActivation>
TW_INLINE typename Set::Vector activate_lanes(typename Set::Vector x) {
  static_assert(kActivation >= 0 && kActivation < TW_ACTIVATIONS);
  if constexpr (kActivation == TW_SILU) return Set::silu(x);
  if constexpr (kActivation == TW_GELU_TANH) return gelu_tanh_lanes<Set>(x);
  if constexpr (kActivation == TW_GELU_ERF) return gelu_erf_lanes<Set>(x);
  if constexpr (kActivation == TW_RELU) return Set::max(x, Set::all(0.0f));
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_VECTOR_ACTIVATION_H_
