// The layout of one KV page. A block holds, for every KV head, a K part and then a V part:
//   K: block_size/16 tiles of 16 positions, each a panel as a matmul weight has: [head_dim/g][16
//   positions][g],
//      g elements of head_dim in 4 bytes (1 for fp32, 2 for bf16), head_dim padded to a multiple of g;
//   V: [block_size positions][head_dim].
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_

#include "plugins/common/kernel_types.h"

static inline size_t tw_kv_k_bytes(int dtype, int head_dim, int block_size) {
  return (size_t)(block_size / TW_LANES) * tw_panel_bytes(dtype, (size_t)head_dim);
}

// V rows are padded so that a head's part, and so every part after it, starts on 64 bytes.
static inline size_t tw_kv_v_bytes(int dtype, int head_dim, int block_size) {
  size_t bytes = (size_t)block_size * (size_t)head_dim * tw_dtype_bytes(dtype);
  return (bytes + 63) / 64 * 64;
}

static inline size_t tw_kv_head_bytes(int dtype, int head_dim, int block_size) {
  return tw_kv_k_bytes(dtype, head_dim, block_size) + tw_kv_v_bytes(dtype, head_dim, block_size);
}

// Bytes of one block of one layer.
static inline size_t tw_kv_block_bytes(int dtype, int kv_heads, int head_dim, int block_size) {
  return (size_t)kv_heads * tw_kv_head_bytes(dtype, head_dim, block_size);
}

// Byte offset of element (position, d) of K inside a head's part.
static inline size_t tw_kv_k_offset(int dtype, int head_dim, int position, int d) {
  int g = tw_k_group(dtype);
  size_t tile = (size_t)(position / TW_LANES) * tw_panel_bytes(dtype, (size_t)head_dim);
  size_t element = (size_t)(d / g) * TW_LANES * g + (size_t)(position % TW_LANES) * g + (size_t)(d % g);
  return tile + element * tw_dtype_bytes(dtype);
}

// Byte offset of element (position, d) of V inside a head's part.
static inline size_t tw_kv_v_offset(int dtype, int head_dim, int block_size, int position, int d) {
  return tw_kv_k_bytes(dtype, head_dim, block_size) +
         ((size_t)position * (size_t)head_dim + (size_t)d) * tw_dtype_bytes(dtype);
}

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
