// Vector twins of tanh.h, which give the same bits lane for lane, for an instruction set `Set` (Avx2,
// Avx512 or Neon).
#ifndef TENSORWRIGHT_PLUGINS_COMMON_VECTOR_TANH_H_
#define TENSORWRIGHT_PLUGINS_COMMON_VECTOR_TANH_H_

#include "plugins/common/tanh.h"
#include "plugins/common/vector.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set, typename Vector = typename Set::Vector>
inline Vector tanh_lanes(Vector x) {
  const Vector one = Set::all(1.0f), z = Set::mul(x, x);
  Vector p = Set::fma(Set::all(TW_TANH_C11), z, Set::all(TW_TANH_C9));
  p = Set::fma(p, z, Set::all(TW_TANH_C7));
  p = Set::fma(p, z, Set::all(TW_TANH_C5));
  p = Set::fma(p, z, Set::all(TW_TANH_C3));
  const Vector near = Set::fma(Set::mul(p, z), x, x);
  const Vector far = Set::sub(one, Set::div(Set::all(2.0f), Set::add(Set::exp(Set::add(x, x)), one)));
  return Set::choose(Set::less(Set::abs(x), Set::all(TW_TANH_NEAR)), near, far);
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector erf_lanes(Vector x) {
  const Vector t = Set::abs(x), s = Set::mul(x, x);
  Vector near = Set::fma(Set::all(-5.96761703e-4f), s, Set::all(4.99119423e-3f));
  near = Set::fma(near, s, Set::all(-2.67681349e-2f));
  near = Set::fma(near, s, Set::all(1.12819925e-1f));
  near = Set::fma(near, s, Set::all(-3.76125336e-1f));
  near = Set::fma(near, s, Set::all(1.28379166e-1f));
  near = Set::fma(near, x, x);
  Vector r = Set::fma(Set::all(-1.72853470e-5f), t, Set::all(3.83197126e-4f));
  const Vector u = Set::fma(Set::all(-3.88396438e-3f), t, Set::all(2.42546219e-2f));
  r = Set::fma(r, s, u);
  r = Set::fma(r, t, Set::all(-1.06777877e-1f));
  r = Set::fma(r, t, Set::all(-6.34846687e-1f));
  r = Set::fma(r, t, Set::all(-1.28717512e-1f));
  r = Set::fma(r, t, Set::negate(t));
  const Vector far = Set::with_sign(Set::sub(Set::all(1.0f), Set::exp(r)), x);
  return Set::choose(Set::at_most(t, Set::all(TW_ERF_NEAR)), near, far);
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector sigmoid_lanes(Vector x) {
  const Vector one = Set::all(1.0f);
  return Set::div(one, Set::add(one, Set::exp(Set::negate(x))));
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector half_gate_lanes(Vector x, Vector gate) {
  return Set::mul(Set::mul(Set::all(0.5f), x), Set::add(Set::all(1.0f), gate));
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector gelu_tanh_lanes(Vector x) {
  const Vector cube = Set::mul(Set::all(TW_GELU_CUBE), Set::mul(x, x));
  return half_gate_lanes<Set>(x, tanh_lanes<Set>(Set::mul(Set::all(TW_GELU_ROOT), Set::fma(cube, x, x))));
}

template <typename Set, typename Vector = typename Set::Vector>
inline Vector gelu_erf_lanes(Vector x) {
  return half_gate_lanes<Set>(x, erf_lanes<Set>(Set::mul(x, Set::all(TW_HALF_ROOT))));
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_VECTOR_TANH_H_
