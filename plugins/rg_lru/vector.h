// rg_lru for an instruction set `Set` (Avx2, Avx512 or Neon). A lane is a channel.
#ifndef TENSORWRIGHT_PLUGINS_RG_LRU_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_RG_LRU_VECTOR_H_

#include "plugins/common/vector.h"
#include "plugins/common/vector_tanh.h"
#include "plugins/rg_lru/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set>
void rg_lru(const tw_rg_lru_args* a) {
  const auto one = Set::all(1.0f);
  for (int64_t i = a->begin; i < a->end; i += Set::kLanes) {
    const int64_t count = a->end - i;
    const auto rate = Set::load(a->rate + i, count);
    const auto decay_bias = Set::load(a->decay_bias + i, count);
    const auto input_bias = Set::load(a->input_bias + i, count);
    auto h = a->fresh ? Set::all(0.0f) : Set::load(a->state + i, count);
    for (int64_t t = 0; t < a->tokens; ++t) {
      const auto decay = Set::load(a->decay + t * a->decay_stride + i, count);
      const auto log_a = Set::mul(sigmoid_lanes<Set>(Set::add(decay, decay_bias)), rate);
      const auto tanh = tanh_lanes<Set>(log_a);
      const auto square = Set::div(Set::mul(Set::all(-2.0f), tanh), Set::sub(one, tanh));
      const auto share = a->fresh && t == 0 ? one : Set::sqrt(square);
      const auto input = Set::load(a->input + t * a->input_stride + i, count);
      const auto gate = sigmoid_lanes<Set>(Set::add(input, input_bias));
      const auto x = Set::load(a->x + t * a->x_stride + i, count);
      h = Set::fma(Set::exp(log_a), h, Set::mul(Set::mul(x, gate), share));
      Set::store(a->y, a->y_dtype, t * a->y_stride + i, count, h);
    }
    Set::store(a->state, TW_F32, i, count, h);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_RG_LRU_VECTOR_H_
