// The reference rotary kernels. rotary_table serves every instruction set: libm decides its bits.
#include <math.h>
#include <stdint.h>

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/quantize.h"
#include "plugins/rotary/kernel.h"

namespace tensorwright {
namespace {

void store(void* at, int dtype, float value) {
  if (dtype == TW_BF16) {
    *(uint16_t*)at = tw_f32_to_bf16(value);
  } else {
    *(float*)at = value;
  }
}

// Returns element d of one rotated head. Products are rounded before the sum, as in the model's own
// arithmetic.
float rotated(const float* x, const float* table, int half, int d) {
  if (d >= 2 * half) return x[d];
  const int i = d < half ? d : d - half;
  const float cosine = table[i], sine = table[half + i];
  return d < half ? x[i] * cosine - x[half + i] * sine : x[half + i] * cosine + x[i] * sine;
}

void put_rotated(const tw_rotary_kv_write_args* a, char* page, int position, const float* x,
                 const float* table, const float* v) {
  float k[TW_MAX_INT_HEAD_DIM];
  for (int d = 0; d < a->head_dim; ++d) k[d] = rotated(x, table, a->rotary_dim / 2, d);
  put_quantized(page, a->kv_dtype, a->head_dim, a->block_size, position, k, v);
}

}  // namespace

void rotary_table_scalar(const tw_rotary_table_args* a) {
  for (int64_t t = 0; t < a->tokens; ++t) {
    float* row = a->table + t * a->table_stride;
    for (int32_t i = 0; i < a->half; ++i) {
      const float angle = (float)a->positions[t] * a->inv_freq[i];
      row[i] = cosf(angle) * a->scale;
      row[a->half + i] = sinf(angle) * a->scale;
    }
  }
}

void rotary_kv_write_scalar(const tw_rotary_kv_write_args* a) {
  const int half = a->rotary_dim / 2, bytes = (int)tw_dtype_bytes(a->q_dtype);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float* x = a->qkv + t * a->qkv_stride;
    const float* table = a->table + t * a->table_stride;
    char* q = (char*)a->q + t * a->q_stride * bytes;
    for (int h = 0; h < a->heads; ++h, x += a->head_dim) {
      for (int d = 0; d < a->head_dim; ++d, q += bytes) store(q, a->q_dtype, rotated(x, table, half, d));
    }
    char* block = a->pages + a->slots[t] / a->block_size * a->page_bytes;
    const int position = a->slots[t] % a->block_size;
    const float* v = x + (int64_t)a->kv_heads * a->head_dim;
    for (int h = 0; h < a->kv_heads; ++h, x += a->head_dim, v += a->head_dim) {
      char* page = block + h * tw_kv_head_bytes(a->kv_dtype, a->head_dim, a->block_size);
      if (tw_kv_is_quantized(a->kv_dtype)) {
        put_rotated(a, page, position, x, table, v);
        continue;
      }
      tw_kv_pad_k(page, a->kv_dtype, a->head_dim, position);
      for (int d = 0; d < a->head_dim; ++d) {
        store(page + tw_kv_k_offset(a->kv_dtype, a->head_dim, position, d), a->kv_dtype,
              rotated(x, table, half, d));
        store(page + tw_kv_v_offset(a->kv_dtype, a->head_dim, a->block_size, position, d), a->kv_dtype, v[d]);
      }
    }
  }
}

}  // namespace tensorwright
