// The layout of one KV page. A block holds, for every KV head, a K part and then a V part:
//   K: block_size/16 tiles of 16 positions, each a panel as a matmul weight has: [head_dim/g][16
//   positions][g],
//      g elements of head_dim in 4 bytes (1 for fp32, 2 for bf16, 4 for int8), head_dim padded to a multiple
//      of g; in an int8 page 16 fp32 scales follow each panel;
//   V: [block_size positions][head_dim]; in an int8 page block_size fp32 scales follow, on 64 bytes.
// An element of an int8 page is its integer times the scale of its position.
// An int4 page has one part for each group of 64 dimensions (the last may be smaller) in a position:
//   K tile: for each group its panel, [dims/8][16 positions][4 bytes], dims padded to a multiple of 8: byte i
//      holds dimension i in its low half and dimension 4 + i in its high half; then 16 words;
//   V: [block_size positions][head_dim padded to a multiple of 32, / 2 bytes]: of 32 dimensions byte i holds
//      dimension i in its low half and dimension 16 + i in its high half; then [groups][block_size] words.
// A word is a scale, bfloat16 in the upper half, and an offset, bfloat16 in the lower half. An element is its
// integer, 0 to 15, times the scale, plus the offset.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_

#include <stdbool.h>

#include "plugins/common/kernel_types.h"

// The largest head_dim. Kernels keep some rows of q on the stack. The limit of an int8 page is lower, because
// products of 15 and 8 bits are summed in 32 bits.
enum { TW_MAX_HEAD_DIM = 4096, TW_MAX_INT_HEAD_DIM = 1024 };

// Returns whether a cache of this dtype holds integers. q then has the dtype of activations.
static inline bool tw_kv_is_quantized(int dtype) { return dtype == TW_I8 || dtype == TW_I4; }

static inline int tw_max_head_dim(int dtype) {
  return tw_kv_is_quantized(dtype) ? TW_MAX_INT_HEAD_DIM : TW_MAX_HEAD_DIM;
}

// The dimensions of an int4 page that share a scale and an offset, and how many such groups a head may have.
enum { TW_KV_GROUP = 64, TW_MAX_KV_GROUPS = (int)TW_MAX_INT_HEAD_DIM / (int)TW_KV_GROUP };

// Returns the scales of one position of K, or of V.
static inline int tw_kv_scales(int dtype, int head_dim) {
  return dtype == TW_I4 ? (head_dim + TW_KV_GROUP - 1) / TW_KV_GROUP : dtype == TW_I8 ? 1 : 0;
}

// Returns the bytes of the panels of a K tile.
static inline size_t tw_kv_panel_bytes(int dtype, int head_dim) {
  if (dtype == TW_I4) return (size_t)((head_dim + 7) / 8) * 4 * TW_LANES;
  return tw_panel_bytes(dtype, (size_t)head_dim);
}

// The bytes from one group's panel of an int4 K tile to the next group's: the panel and 16 words.
enum { TW_KV_GROUP_BYTES = ((int)TW_KV_GROUP / 8 + 1) * 4 * (int)TW_LANES };

// Returns the bytes of a K tile: the panels, and the scales in a page of integers.
static inline size_t tw_kv_tile_bytes(int dtype, int head_dim) {
  return tw_kv_panel_bytes(dtype, head_dim) +
         (size_t)tw_kv_scales(dtype, head_dim) * TW_LANES * sizeof(float);
}

// Returns the bytes of a row of V of `columns` columns.
static inline size_t tw_kv_row_bytes(int dtype, int columns) {
  if (dtype == TW_I4) return (size_t)((columns + 31) / 32) * 16;
  return (size_t)columns * tw_dtype_bytes(dtype);
}

static inline size_t tw_kv_k_bytes(int dtype, int head_dim, int block_size) {
  return (size_t)(block_size / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim);
}

// Returns the bytes of the V rows, padded so that the scales of V, or the next head's part, start on 64
// bytes.
static inline size_t tw_kv_v_row_bytes(int dtype, int head_dim, int block_size) {
  size_t bytes = (size_t)block_size * tw_kv_row_bytes(dtype, head_dim);
  return (bytes + 63) / 64 * 64;
}

static inline size_t tw_kv_v_bytes(int dtype, int head_dim, int block_size) {
  return tw_kv_v_row_bytes(dtype, head_dim, block_size) +
         (size_t)tw_kv_scales(dtype, head_dim) * (size_t)block_size * sizeof(float);
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
  const int64_t scales = tw_kv_scales(dtype, (int)head_dim) * (int64_t)sizeof(float);
  return (dtype == TW_I4 ? (head_dim + 1) / 2 : head_dim * (int64_t)tw_dtype_bytes(dtype)) + scales;
}

// Returns the byte offset of element (position, d) of K inside a head's part. In an int4 page it is in the
// byte's high half if tw_kv_k_high(d), else in its low half.
static inline size_t tw_kv_k_offset(int dtype, int head_dim, int position, int d) {
  if (dtype == TW_I4) {
    return (size_t)(position / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim) +
           (size_t)(d / TW_KV_GROUP) * TW_KV_GROUP_BYTES +
           (size_t)(d % TW_KV_GROUP / 8 * 4 * TW_LANES + position % TW_LANES * 4 + d % 4);
  }
  int g = tw_k_group(dtype);
  size_t tile = (size_t)(position / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim);
  size_t element = (size_t)(d / g) * TW_LANES * g + (size_t)(position % TW_LANES) * g + (size_t)(d % g);
  return tile + element * tw_dtype_bytes(dtype);
}

static inline int tw_kv_k_high(int d) { return d / 4 % 2; }

// Zeroes the padding of a position of K in bf16, so that a kernel may multiply with it. (Integers are written
// with their padding.)
static inline void tw_kv_pad_k(char* page, int dtype, int head_dim, int position) {
  if (dtype != TW_BF16 || head_dim % 2 == 0) return;
  *(uint16_t*)(page + tw_kv_k_offset(dtype, head_dim, position, head_dim)) = 0;
}

// Returns the byte offset of element (position, d) of V inside a head's part. In an int4 page it is in the
// byte's high half if tw_kv_v_high(d), else in its low half.
static inline size_t tw_kv_v_offset(int dtype, int head_dim, int block_size, int position, int d) {
  const size_t row =
      tw_kv_k_bytes(dtype, head_dim, block_size) + (size_t)position * tw_kv_row_bytes(dtype, head_dim);
  return row + (dtype == TW_I4 ? (size_t)(d / 32 * 16 + d % 16) : (size_t)d * tw_dtype_bytes(dtype));
}

static inline int tw_kv_v_high(int d) { return d / 16 % 2; }

// The next two functions return the byte offsets of a position's scales, of `group` of its dimensions, inside
// a head's part of a page of integers. In an int4 page a word stands there.
static inline size_t tw_kv_k_scale_offset(int dtype, int head_dim, int position, int group) {
  const int left = head_dim - group * TW_KV_GROUP;
  const int dims = dtype == TW_I4 && left > TW_KV_GROUP ? (int)TW_KV_GROUP : left;
  return (size_t)(position / TW_LANES) * tw_kv_tile_bytes(dtype, head_dim) +
         (size_t)group * TW_KV_GROUP_BYTES + tw_kv_panel_bytes(dtype, dims) +
         (size_t)(position % TW_LANES) * sizeof(float);
}

static inline size_t tw_kv_v_scale_offset(int dtype, int head_dim, int block_size, int position, int group) {
  return tw_kv_k_bytes(dtype, head_dim, block_size) + tw_kv_v_row_bytes(dtype, head_dim, block_size) +
         (size_t)(group * block_size + position) * sizeof(float);
}

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_LAYOUT_H_
