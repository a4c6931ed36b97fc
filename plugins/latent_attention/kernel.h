// latent_kv_write: joins the rows of q of latent attention, rotates what rotates, and writes a latent row
// into its page of K. V is a part of K, so that the pages have no V.
#ifndef TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNEL_H_

#include "plugins/common/kernel_types.h"

typedef struct tw_latent_kv_write_args {
  int32_t tokens;
  int32_t heads;
  int32_t latent;           // columns of a latent; even
  int32_t rope;             // columns behind the latent; they rotate if there is a table; even
  int32_t q_head;           // columns of a head of q, of which the last `rope` are read
  int32_t block_size;       // tokens in a page
  int32_t y_dtype;          // TW_F32 or TW_BF16
  int32_t kv_dtype;         // TW_F32 or TW_BF16, of the cache
  const float* q_latent;    // [tokens, heads * latent]
  int64_t q_latent_stride;  // elements, as all strides
  const float* q;           // [tokens, heads * q_head]
  int64_t q_stride;
  const float* kv;  // [tokens, latent + rope]
  int64_t kv_stride;
  const float* table;  // [tokens, rope], from rotary_table; or NULL
  int64_t table_stride;
  const int32_t* slots;  // [tokens] block * block_size + offset in the block
  void* y;               // [tokens, heads * (latent + rope)]
  int64_t y_stride;
  char* pages;         // this layer's pages: K panels alone (plugins/paged_attention/layout.h)
  int64_t page_bytes;  // bytes between the pages of one block and those of the next
} tw_latent_kv_write_args;

typedef void (*tw_latent_kv_write_fn)(const tw_latent_kv_write_args*);

#endif  // TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNEL_H_
