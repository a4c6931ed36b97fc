// selective_scan for an instruction set `Set` (Avx2, Avx512 or Neon). A lane is a channel.
#ifndef TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_VECTOR_H_

#include "plugins/common/vector.h"
#include "plugins/common/vector_softplus.h"
#include "plugins/selective_scan/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kAhead = 4;  // tokens

template <typename Set>
void selective_scan(const tw_selective_scan_args* a) {
  for (int64_t i = a->begin; i < a->end; i += Set::kLanes) {
    const int64_t count = a->end - i;
    const int64_t first = i / TW_LANES * TW_LANES * a->states + i % TW_LANES;
    float* state = a->state + first;
    const float* decays = a->a + first;
    const auto d = Set::load(a->d + i, count), bias = Set::load(a->dt_bias + i, count);
    for (int64_t n = 0; a->fresh && n < a->states; ++n) {
      Set::store(state, TW_F32, n * TW_LANES, Set::kLanes, Set::all(0.0f));
    }
    for (int64_t t = 0; t < a->tokens; ++t) {
      // Rows lie so far apart that the processor does not foresee the next ones. Fetching past the end is
      // legal.
      __builtin_prefetch(a->x + (t + kAhead) * a->x_stride + i);
      __builtin_prefetch(a->dt + (t + kAhead) * a->dt_stride + i);
      const auto step = softplus_lanes<Set>(Set::add(Set::load(a->dt + t * a->dt_stride + i, count), bias));
      const auto x = Set::load(a->x + t * a->x_stride + i, count), input = Set::mul(step, x);
      const float* b = a->b + t * a->b_stride;
      const float* c = a->c + t * a->c_stride;
      auto sum = Set::mul(d, x);
      for (int64_t n = 0; n < a->states; ++n) {
        // A step is not negative, and the numbers of `decays` are not positive.
        const auto decay = Set::exp_falling(Set::mul(step, Set::load(decays + n * TW_LANES, Set::kLanes)));
        const auto before = Set::load(state + n * TW_LANES, Set::kLanes);
        const auto h = Set::fma(before, decay, Set::mul(input, Set::all(b[n])));
        Set::store(state, TW_F32, n * TW_LANES, Set::kLanes, h);
        sum = Set::fma(h, Set::all(c[n]), sum);
      }
      Set::store(a->y, a->y_dtype, t * a->y_stride + i, count, sum);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_VECTOR_H_
