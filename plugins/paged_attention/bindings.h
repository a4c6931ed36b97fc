// Checks the dtype of the cache that tests of the attention and rotary kernels pass.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BINDINGS_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BINDINGS_H_

#include <optional>

#include "plugins/paged_attention/layout.h"
#include "runtime/bindings/kernel_bindings.h"

namespace tensorwright {

// Returns the dtype of the cache: `asked`, or that of q if there is none.
inline int cache_dtype(std::optional<int> asked, int q_dtype, int head_dim) {
  const int dtype = asked.value_or(q_dtype);
  require(dtype == q_dtype || dtype == TW_I8, "kv_dtype must be q's or int8");
  require(dtype != TW_I8 || head_dim <= TW_MAX_I8_HEAD_DIM, "head_dim is too large for an int8 cache");
  return dtype;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BINDINGS_H_
