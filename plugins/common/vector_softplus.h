// The vector twin of softplus.h, which gives the same bits lane for lane, for an instruction set `Set` (Avx2,
// Avx512 or Neon).
#ifndef TENSORWRIGHT_PLUGINS_COMMON_VECTOR_SOFTPLUS_H_
#define TENSORWRIGHT_PLUGINS_COMMON_VECTOR_SOFTPLUS_H_

#include "plugins/common/vector.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set, typename Vector = typename Set::Vector>
TW_INLINE Vector softplus_lanes(Vector x) {
  const Vector zero = Set::all(0.0f);
  const Vector u = Set::exp(Set::negate(Set::abs(x)));
  const Vector s = Set::div(u, Set::add(Set::all(2.0f), u)), q = Set::mul(s, s);
  Vector p = Set::fma(Set::all(1.0f / 15.0f), q, Set::all(1.0f / 13.0f));
  p = Set::fma(p, q, Set::all(1.0f / 11.0f));
  p = Set::fma(p, q, Set::all(1.0f / 9.0f));
  p = Set::fma(p, q, Set::all(1.0f / 7.0f));
  p = Set::fma(p, q, Set::all(1.0f / 5.0f));
  p = Set::fma(p, q, Set::all(1.0f / 3.0f));
  const Vector log1p = Set::mul(Set::all(2.0f), Set::fma(s, Set::mul(p, q), s));
  return Set::add(Set::choose(Set::less(zero, x), x, zero), log1p);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_VECTOR_SOFTPLUS_H_
