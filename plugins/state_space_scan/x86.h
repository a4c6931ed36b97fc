// state_space_scan for an x86 instruction set `Set` (Avx2 or Avx512). A lane is a column of the state.
#ifndef TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_X86_H_
#define TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_X86_H_

#include "plugins/common/x86.h"
#include "plugins/state_space_scan/kernel.h"
#include "plugins/state_space_scan/step.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Scans kVectors registers of columns from `first` on. Columns past the width are zero and not written.
template <typename Set, int kVectors>
void scan_columns(const tw_state_space_scan_args* a, int64_t first) {
  const int64_t columns = a->width - first;
  for (int64_t n = 0; a->fresh && n < a->states; ++n) {
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      Set::store(a->state, TW_F32, n * a->width + first + at, columns - at, Set::all(0.0f));
    }
  }
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float step = tw_scan_step(a, t);
    const auto decay = Set::all(tw_exp(step * a->a));
    const float* b = a->b + t * a->x_stride;
    const float* c = a->c + t * a->x_stride;
    typename Set::Vector x[kVectors], input[kVectors], sum[kVectors];
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      x[i] = Set::load(a->x + t * a->x_stride + first + Set::kLanes * i, columns - Set::kLanes * i);
      input[i] = Set::mul(Set::all(step), x[i]);
      sum[i] = Set::all(0.0f);
    }
    for (int64_t n = 0; n < a->states; ++n) {
      float* state = a->state + n * a->width + first;
      TW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int64_t at = Set::kLanes * i;
        const auto h =
            Set::fma(Set::load(state + at, columns - at), decay, Set::mul(input[i], Set::all(b[n])));
        Set::store(state, TW_F32, at, columns - at, h);
        sum[i] = Set::fma(h, Set::all(c[n]), sum[i]);
      }
    }
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = first + Set::kLanes * i;
      const auto y = Set::fma(Set::all(a->d), x[i], sum[i]);
      Set::store(a->y, a->y_dtype, a->y_begin + t * a->y_stride + at, a->width - at, y);
    }
  }
}

template <typename Set>
void state_space_scan(const tw_state_space_scan_args* a) {
  int64_t first = 0;
  for (; first + 2 * Set::kLanes < a->width; first += 4 * Set::kLanes) scan_columns<Set, 4>(a, first);
  for (; first < a->width; first += Set::kLanes) scan_columns<Set, 1>(a, first);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_X86_H_
