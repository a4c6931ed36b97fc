// causal_conv for an instruction set `Set` (Avx2, Avx512 or Neon). A lane is a channel.
#ifndef TENSORWRIGHT_PLUGINS_CAUSAL_CONV_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_CAUSAL_CONV_VECTOR_H_

#include "plugins/causal_conv/kernel.h"
#include "plugins/common/vector.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Returns the inputs of token t, which may be before the first one.
template <typename Set>
TW_INLINE typename Set::Vector inputs(const tw_causal_conv_args* a, int64_t t, int64_t c, int64_t count) {
  if (t >= 0) return Set::load(a->x + t * a->x_stride + c, count);
  if (a->fresh) return Set::all(0.0f);
  return Set::load(a->state + (t + a->width - 1) * a->channels + c, count);
}

constexpr int64_t kAhead = 16;  // tokens

template <typename Set>
void causal_conv(const tw_causal_conv_args* a) {
  for (int64_t c = a->begin; c < a->end; c += Set::kLanes) {
    const int64_t count = a->end - c, before = a->width - 1;
    typename Set::Vector w[TW_CONV_MAX_WIDTH];
    for (int64_t j = 0; j < a->width; ++j) w[j] = Set::load(a->w + j * a->channels + c, count);
    const auto bias = a->bias ? Set::load(a->bias + c, count) : Set::all(0.0f);
    for (int64_t t = 0; t < a->tokens; ++t) {
      // Rows lie so far apart that the processor does not foresee the next ones. Fetching past the end is
      // legal.
      __builtin_prefetch(a->x + (t + kAhead) * a->x_stride + c);
      auto sum = bias;
      for (int64_t j = 0; j < a->width; ++j) {
        sum = Set::fma(w[j], inputs<Set>(a, t - before + j, c, count), sum);
      }
      if (a->activation == TW_CONV_SILU) sum = Set::silu(sum);
      Set::store(a->y, a->y_dtype, t * a->y_stride + c, count, sum);
    }
    for (int64_t i = 0; i < before; ++i) {
      Set::store(a->state, TW_F32, i * a->channels + c, count,
                 inputs<Set>(a, a->tokens - before + i, c, count));
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_CAUSAL_CONV_VECTOR_H_
