// The layout of one KV page. A block holds, for every KV head, a K part and then a V part:
//   K: block_size/16 tiles of 16 positions, each a panel as a matmul weight has: [head_dim/g][16
//   positions][g],
//      g elements of head_dim in 4 bytes (1 for fp32, 2 for bf16, 4 for int8), head_dim padded to a multiple
//      of g; in an int8 page 16 fp32 scales follow each panel;
//   V: [block_size positions][head_dim]; in an int8 page block_size fp32 scales follow, on 64 bytes.
// An element of an int8 page is its integer times the scale of its position.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_

#include "plugins/common/kernel_types.h"

// The largest head_dim. Kernels keep some rows of q on the stack. The limit of an int8 page is lower, because
// products of 15 and 8 bits are summed in 32 bits.
enum { TW_MAX_HEAD_DIM = 4096, TW_MAX_I8_HEAD_DIM = 1024 };

static inline int tw_max_head_dim(int dtype) { return dtype == TW_I8 ? TW_MAX_I8_HEAD_DIM : TW_MAX_HEAD_DIM; }

// Returns the bytes of a K tile: the panel, and the scales in an int8 page.
static inline size_t tw_kv_tile_bytes(int dtype, int head_dim) {
  return tw_panel_bytes(dtype, (size_t)head_dim) + (dtype == TW_I8 ? TW_LANES * sizeof(float) : 0);
}

static inline size_t tw_kv_k_bytes(int dtype, int head_dim, int block_size) {
  return (size_t)(block_size / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim);
}

// Returns the bytes of the V rows, padded so that the scales of V, or the next head's part, start on 64
// bytes.
static inline size_t tw_kv_v_row_bytes(int dtype, int head_dim, int block_size) {
  size_t bytes = (size_t)block_size * (size_t)head_dim * tw_dtype_bytes(dtype);
  return (bytes + 63) / 64 * 64;
}

static inline size_t tw_kv_v_bytes(int dtype, int head_dim, int block_size) {
  size_t scales = dtype == TW_I8 ? (size_t)block_size * sizeof(float) : 0;
  return tw_kv_v_row_bytes(dtype, head_dim, block_size) + scales;
}

static inline size_t tw_kv_head_bytes(int dtype, int head_dim, int block_size) {
  return tw_kv_k_bytes(dtype, head_dim, block_size) + tw_kv_v_bytes(dtype, head_dim, block_size);
}

// Returns the bytes of one block of one layer.
static inline size_t tw_kv_block_bytes(int dtype, int kv_heads, int head_dim, int block_size) {
  return (size_t)kv_heads * tw_kv_head_bytes(dtype, head_dim, block_size);
}

// Returns the bytes of one position of K, or of V, of one head, without padding: what a step reads and
// writes.
static inline int64_t tw_kv_position_bytes(int dtype, int64_t head_dim) {
  return head_dim * (int64_t)tw_dtype_bytes(dtype) + (dtype == TW_I8 ? (int64_t)sizeof(float) : 0);
}

// Returns the byte offset of element (position, d) of K inside a head's part.
static inline size_t tw_kv_k_offset(int dtype, int head_dim, int position, int d) {
  int g = tw_k_group(dtype);
  size_t tile = (size_t)(position / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim);
  size_t element = (size_t)(d / g) * TW_LANES * g + (size_t)(position % TW_LANES) * g + (size_t)(d % g);
  return tile + element * tw_dtype_bytes(dtype);
}

// Zeroes the padding of a position of K in bf16, so that a kernel may multiply with it. (Integers are written
// with their padding.)
static inline void tw_kv_pad_k(char* page, int dtype, int head_dim, int position) {
  if (dtype != TW_BF16 || head_dim % 2 == 0) return;
  *(uint16_t*)(page + tw_kv_k_offset(dtype, head_dim, position, head_dim)) = 0;
}

// Returns the byte offset of element (position, d) of V inside a head's part.
static inline size_t tw_kv_v_offset(int dtype, int head_dim, int block_size, int position, int d) {
  return tw_kv_k_bytes(dtype, head_dim, block_size) +
         ((size_t)position * (size_t)head_dim + (size_t)d) * tw_dtype_bytes(dtype);
}

// The next two functions return the byte offsets of a position's scales inside a head's part of an int8 page.
static inline size_t tw_kv_k_scale_offset(int head_dim, int position) {
  return (size_t)(position / TW_LANES) * tw_kv_tile_bytes(TW_I8, head_dim) +
         tw_panel_bytes(TW_I8, (size_t)head_dim) + (size_t)(position % TW_LANES) * sizeof(float);
}

static inline size_t tw_kv_v_scale_offset(int head_dim, int block_size, int position) {
  return tw_kv_k_bytes(TW_I8, head_dim, block_size) + tw_kv_v_row_bytes(TW_I8, head_dim, block_size) +
         (size_t)position * sizeof(float);
}

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
