// delta_rule for an instruction set `Set` (Avx2, Avx512 or Neon). A lane is a column of the state.
#ifndef TENSORWRIGHT_PLUGINS_DELTA_RULE_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_DELTA_RULE_VECTOR_H_

#include "plugins/common/vector.h"
#include "plugins/common/vector_softplus.h"
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

// What one token does to the state of its head.
struct Token {
  float rate;
  float q[TW_DELTA_MAX_KEYS], k[TW_DELTA_MAX_KEYS];  // normalised
  float decay[TW_DELTA_MAX_KEYS];                    // of each row of the state
  float kept[TW_DELTA_MAX_KEYS];                     // k times decay
};

// Writes the decay of each row of the state at token t, and each key's element times it.
template <typename Set>
void decay_rows(const tw_delta_rule_args* a, int64_t t, Token* token) {
  const auto alike = Set::all(a->decays == 1 ? tw_delta_decay(a, t, 0) : 0.0f);
  for (int64_t c = 0; c < a->keys; c += Set::kLanes) {
    const int64_t count = a->keys - c;
    auto decay = alike;
    if (a->decays > 1) {
      const auto step = softplus_lanes<Set>(Set::load(a->dt + t * a->dt_stride + c, count));
      decay = Set::exp(Set::mul(Set::all(a->a), step));
    }
    Set::store(token->decay, TW_F32, c, count, decay);
    Set::store(token->kept, TW_F32, c, count, Set::mul(Set::load(token->k + c, count), decay));
  }
}

// Advances kVectors registers of columns from `first` on by token t. Columns past the width are zero and not
// written.
template <typename Set, int kVectors>
TW_INLINE void advance(const tw_delta_rule_args* a, int64_t t, int64_t first, const Token& token) {
  const int64_t columns = a->width - first;
  typename Set::Vector known[kVectors], change[kVectors], y[kVectors];
  TW_UNROLL
  for (int i = 0; i < kVectors; ++i) known[i] = y[i] = Set::all(0.0f);
  for (int64_t row = 0; row < a->keys; ++row) {
    const float* state = a->state + row * a->width + first;
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      known[i] = Set::fma(Set::load(state + at, columns - at), Set::all(token.kept[row]), known[i]);
    }
  }
  TW_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = Set::kLanes * i;
    const auto v = Set::load(a->v + t * a->q_stride + first + at, columns - at);
    change[i] = Set::mul(Set::sub(v, known[i]), Set::all(token.rate));
  }
  for (int64_t row = 0; row < a->keys; ++row) {
    float* state = a->state + row * a->width + first;
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      const auto kept = Set::mul(Set::all(token.decay[row]), Set::load(state + at, columns - at));
      const auto h = Set::fma(Set::all(token.k[row]), change[i], kept);
      Set::store(state, TW_F32, at, columns - at, h);
      y[i] = Set::fma(h, Set::all(token.q[row]), y[i]);
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
  Token token;
  const int64_t elements = (int64_t)a->keys * a->width;
  for (int64_t i = 0; a->fresh && i < elements; i += Set::kLanes) {
    Set::store(a->state, TW_F32, i, elements - i, Set::all(0.0f));
  }
  for (int64_t t = 0; t < a->tokens; ++t) {
    token.rate = tw_delta_rate(a, t);
    normalise<Set>(token.q, a->q + t * a->q_stride, a->keys, scale);
    normalise<Set>(token.k, a->k + t * a->q_stride, a->keys, 1.0f);
    decay_rows<Set>(a, t, &token);
    int64_t first = 0;
    for (; first + 2 * Set::kLanes < a->width; first += 4 * Set::kLanes) {
      advance<Set, 4>(a, t, first, token);
    }
    for (; first < a->width; first += Set::kLanes) advance<Set, 1>(a, t, first, token);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_DELTA_RULE_VECTOR_H_
