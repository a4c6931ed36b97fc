// Sparse prefill: which positions of a sequence choose what they see, and which blocks of the cache hold what
// those of any other prompt would. plugins/paged_attention/instruction_choice.h says how they choose.
// Everything here is a function of the length of the request's prompt, so that it is the same again after a
// preemption.
#ifndef TENSORWRIGHT_RUNTIME_CORE_BASE_SPARSE_PREFILL_H_
#define TENSORWRIGHT_RUNTIME_CORE_BASE_SPARSE_PREFILL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tensorwright {

// Returns the end of the positions that choose: of the prompt's whole blocks. What is behind them, a part of
// a block and what is generated, sees everything.
constexpr int32_t sparse_end(int32_t prompt_tokens, int32_t block_size) {
  return prompt_tokens / block_size * block_size;
}

// Returns how many leading tokens of a sequence have the keys and values that they would have in any longer
// prompt that begins with them. budget: the most positions that one sees that chooses, so those below it see
// everything in any case; 0: no position chooses.
constexpr int32_t shareable_tokens(int32_t prompt_tokens, int32_t budget, int32_t block_size) {
  if (budget == 0) return std::numeric_limits<int32_t>::max();
  return std::max(budget, sparse_end(prompt_tokens, block_size));
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_BASE_SPARSE_PREFILL_H_
