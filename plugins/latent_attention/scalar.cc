// The reference kernel of latent_kv_write.
#include <stdint.h>

#include "plugins/common/bf16.h"
#include "plugins/latent_attention/kernel.h"
#include "plugins/paged_attention/layout.h"

namespace tensorwright {
namespace {

void store(void* at, int dtype, float value) {
  if (dtype == TW_BF16) {
    *(uint16_t*)at = tw_f32_to_bf16(value);
  } else {
    *(float*)at = value;
  }
}

// Returns element d of `rope` columns. Products are rounded before the sum, as in rotary_kv_write.
float rotated(const float* x, const float* table, int rope, int d) {
  if (!table) return x[d];
  const int half = rope / 2, i = d % half;
  const float cosine = table[i], sine = table[half + i];
  return d < half ? x[i] * cosine - x[half + i] * sine : x[half + i] * cosine + x[i] * sine;
}

}  // namespace

void latent_kv_write_scalar(const tw_latent_kv_write_args* a) {
  const int bytes = (int)tw_dtype_bytes(a->y_dtype), width = a->latent + a->rope;
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float* table = a->table ? a->table + t * a->table_stride : nullptr;
    char* y = (char*)a->y + t * a->y_stride * bytes;
    for (int h = 0; h < a->heads; ++h) {
      const float* latent = a->q_latent + t * a->q_latent_stride + (int64_t)h * a->latent;
      const float* rope = a->q + t * a->q_stride + (int64_t)(h + 1) * a->q_head - a->rope;
      for (int d = 0; d < width; ++d, y += bytes) {
        store(y, a->y_dtype, d < a->latent ? latent[d] : rotated(rope, table, a->rope, d - a->latent));
      }
    }
    const float* kv = a->kv + t * a->kv_stride;
    char* page = a->pages + a->slots[t] / a->block_size * a->page_bytes;
    const int position = a->slots[t] % a->block_size;
    for (int d = 0; d < width; ++d) {
      store(page + tw_kv_k_offset(a->kv_dtype, width, position, d), a->kv_dtype,
            d < a->latent ? kv[d] : rotated(kv + a->latent, table, a->rope, d - a->latent));
    }
  }
}

}  // namespace tensorwright
