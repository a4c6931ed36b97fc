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
  require(dtype == q_dtype || tw_kv_is_quantized(dtype), "kv_dtype must be q's, int8 or int4");
  require(!tw_kv_is_quantized(dtype) || head_dim <= TW_MAX_INT_HEAD_DIM,
          "head_dim is too large for a cache of integers");
  return dtype;
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BINDINGS_H_
