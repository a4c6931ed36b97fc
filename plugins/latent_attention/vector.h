// latent_kv_write for an instruction set `Set` (Avx2, Avx512 or Neon), with the parts of rotary_kv_write.
#ifndef TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_VECTOR_H_

#include "plugins/latent_attention/kernel.h"
#include "plugins/rotary/vector.h"

namespace {  // each including file gets its own copy, compiled with its own flags

template <typename Set>
inline void write_latent_rows(const tw_latent_kv_write_args* a) {
  const int bytes = (int)tw_dtype_bytes(a->y_dtype), width = a->latent + a->rope;
  const int half = a->table ? a->rope / 2 : 0;
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float* table = a->table ? a->table + t * a->table_stride : NULL;
    char* y = (char*)a->y + t * a->y_stride * bytes;
    for (int h = 0; h < a->heads; ++h, y += (int64_t)width * bytes) {
      const float* latent = a->q_latent + t * a->q_latent_stride + (int64_t)h * a->latent;
      const float* rope = a->q + t * a->q_stride + (int64_t)(h + 1) * a->q_head - a->rope;
      rotate_head<Set>(latent, NULL, 0, a->latent, RowSink<Set>{y, a->y_dtype});
      rotate_head<Set>(rope, table, half, a->rope, RowSink<Set>{y + (int64_t)a->latent * bytes, a->y_dtype});
    }
    const float* kv = a->kv + t * a->kv_stride;
    char* page = a->pages + a->slots[t] / a->block_size * a->page_bytes;
    const int position = a->slots[t] % a->block_size;
    char* tile = page + tw_kv_k_offset(a->kv_dtype, width, position, 0);
    char* behind = page + tw_kv_k_offset(a->kv_dtype, width, position, a->latent);
    rotate_head<Set>(kv, NULL, 0, a->latent, TileSink<Set>{tile, a->kv_dtype});
    rotate_head<Set>(kv + a->latent, table, half, a->rope, TileSink<Set>{behind, a->kv_dtype});
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_VECTOR_H_
