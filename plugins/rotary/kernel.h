// rotary: the cosine/sine table of a step, and rotation of q and k with the write of k and v into their
// pages.
#ifndef TENSORWRIGHT_PLUGINS_ROTARY_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_ROTARY_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_rotary_table_args {
  int32_t tokens;
  int32_t half;              // rotary_dim / 2
  const int32_t* positions;  // [tokens]
  const float* inv_freq;     // [half]
  float scale;               // multiplies cos and sin (attention scaling of yarn and longrope)
  float* table;              // [tokens, 2 * half]: cos(float(position) * inv_freq) * scale, then sin
  int64_t table_stride;
} tw_rotary_table_args;

typedef struct tw_rotary_kv_write_args {
  int32_t tokens;
  int32_t heads, kv_heads, head_dim;
  int32_t rotary_dim;    // the first rotary_dim of head_dim rotate in pairs (i, i + rotary_dim/2), the rest
                         // is copied
  int32_t block_size;    // tokens in a page
  int32_t q_dtype;       // TW_F32 or TW_BF16
  int32_t kv_dtype;      // dtype of the cache
  const float* qkv;      // [tokens, (heads + 2 * kv_heads) * head_dim]: all q heads, k heads, v heads
  int64_t qkv_stride;    // elements
  const float* table;    // [tokens, rotary_dim], from rotary_table; not read if rotary_dim is 0
  int64_t table_stride;  // elements
  const int32_t* slots;  // [tokens] block * block_size + offset in the block
  void* q;               // [tokens, heads * head_dim]
  int64_t q_stride;      // elements
  char* pages;           // this layer's pages, laid out as plugins/paged_attention/layout.h says
  int64_t page_bytes;    // bytes between the pages of one block and those of the next
} tw_rotary_kv_write_args;

typedef void (*tw_rotary_table_fn)(const tw_rotary_table_args*);
typedef void (*tw_rotary_kv_write_fn)(const tw_rotary_kv_write_args*);

#endif  // TENSORWRIGHT_PLUGINS_ROTARY_KERNEL_H_
