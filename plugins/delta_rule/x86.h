// delta_rule for an x86 instruction set `Set` (Avx2 or Avx512). A lane is a column of the state.
#ifndef TENSORWRIGHT_PLUGINS_DELTA_RULE_X86_H_
#define TENSORWRIGHT_PLUGINS_DELTA_RULE_X86_H_

#include "plugins/common/x86.h"
#include "plugins/delta_rule/kernel.h"
#include "plugins/delta_rule/step.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Writes x, divided by its length and times `scale`. The registers hold 16 lane sums together.
template <typename Set>
void normalise(float* to, const float* x, int64_t count, float scale) {
  constexpr int kRegisters = TW_LANES / Set::kLanes;
  typename Set::Vector lanes[kRegisters];
  TW_UNROLL
  for (int i = 0; i < kRegisters; ++i) lanes[i] = Set::all(0.0f);
  for (int64_t c = 0; c < count; c += TW_LANES) {
    TW_UNROLL
    for (int i = 0; i < kRegisters; ++i) {
      const int64_t at = c + Set::kLanes * i;
      const auto part = Set::load(x + at, count - at);
      lanes[i] = Set::fma(part, part, lanes[i]);
    }
  }
  const auto factor = Set::all(tw_delta_inverse(Set::tree_sum(lanes)) * scale);
  for (int64_t c = 0; c < count; c += Set::kLanes) {
    Set::store(to, TW_F32, c, count - c, Set::mul(Set::load(x + c, count - c), factor));
  }
}

// Advances kVectors registers of columns from `first` on by token t. Columns past the width are zero and not
// written.
template <typename Set, int kVectors>
TW_INLINE void advance(const tw_delta_rule_args* a, int64_t t, int64_t first, const float* q, const float* k,
                       float decay_of_token, float rate) {
  const int64_t columns = a->width - first;
  const auto decay = Set::all(decay_of_token);
  typename Set::Vector known[kVectors], change[kVectors], y[kVectors];
  TW_UNROLL
  for (int i = 0; i < kVectors; ++i) known[i] = y[i] = Set::all(0.0f);
  for (int64_t row = 0; row < a->keys; ++row) {
    const float* state = a->state + row * a->width + first;
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      known[i] = Set::fma(Set::load(state + at, columns - at), Set::all(k[row]), known[i]);
    }
  }
  TW_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = Set::kLanes * i;
    const auto v = Set::load(a->v + t * a->q_stride + first + at, columns - at);
    change[i] = Set::mul(Set::sub(v, Set::mul(decay, known[i])), Set::all(rate));
  }
  for (int64_t row = 0; row < a->keys; ++row) {
    float* state = a->state + row * a->width + first;
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      const auto kept = Set::mul(decay, Set::load(state + at, columns - at));
      const auto h = Set::fma(Set::all(k[row]), change[i], kept);
      Set::store(state, TW_F32, at, columns - at, h);
      y[i] = Set::fma(h, Set::all(q[row]), y[i]);
    }
  }
  TW_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = first + Set::kLanes * i;
    Set::store(a->y, a->y_dtype, a->y_begin + t * a->y_stride + at, a->width - at, y[i]);
  }
}

template <typename Set>
void delta_rule(const tw_delta_rule_args* a) {
  const float scale = 1.0f / sqrtf((float)a->keys);
  float q[TW_DELTA_MAX_KEYS], k[TW_DELTA_MAX_KEYS];
  const int64_t elements = (int64_t)a->keys * a->width;
  for (int64_t i = 0; a->fresh && i < elements; i += Set::kLanes) {
    Set::store(a->state, TW_F32, i, elements - i, Set::all(0.0f));
  }
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float decay = tw_delta_decay(a, t), rate = tw_delta_rate(a, t);
    normalise<Set>(q, a->q + t * a->q_stride, a->keys, scale);
    normalise<Set>(k, a->k + t * a->q_stride, a->keys, 1.0f);
    int64_t first = 0;
    for (; first + 2 * Set::kLanes < a->width; first += 4 * Set::kLanes) {
      advance<Set, 4>(a, t, first, q, k, decay, rate);
    }
    for (; first < a->width; first += Set::kLanes) advance<Set, 1>(a, t, first, q, k, decay, rate);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_DELTA_RULE_X86_H_
