// paged_attention: softmax(scale * q k^T, causal, windowed or in chunks) v over paged K and V, in splits of
// absolute position. With sinks, one logit per head joins the softmax without a value. With slopes (ALiBi,
// Press et al. 2022), slope * (position of the key - position of the query) is added to each score, in one
// rounding.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNEL_H_

#include "plugins/paged_attention/layout.h"

// TW_ATTENTION_SPLIT is the number of positions in one split. Split s covers [s * TW_ATTENTION_SPLIT, (s+1) *
// TW_ATTENTION_SPLIT); block sizes divide it.
enum { TW_ATTENTION_SPLIT = 512 };

typedef struct tw_attention_args {
  int32_t queries;  // consecutive tokens of one sequence
  int32_t group;    // query heads that share this KV head
  int32_t head_dim;
  // Columns of V: head_dim, or fewer where V is the first columns of K. 0: only the softmax is wanted, and V
  // is not read.
  int32_t v_dim;
  int32_t block_size;      // positions in a page, a multiple of 16
  int32_t first_position;  // absolute position of query 0; query i sees positions <= first_position + i
  int32_t window;          // 0: none; else a query sees only the last `window` positions, its own included
  int32_t chunked;         // 1: it sees only those from the last multiple of `window` on (first_seen.h)
  int32_t sink_tokens;     // it sees the first so many positions of the sequence too, up to its own
  int32_t split;           // index of the split to attend to
  float scale;
  float softcap;        // 0: none; else scores become softcap * tanh(score / softcap)
  const float* slopes;  // [group], or NULL: what a score grows by for each position, behind the softcap
  int32_t q_dtype;      // TW_F32 or TW_BF16: the dtype of the cache, unless that is of integers
  const void* q;        // query 0, head 0 of the group; [queries, group, head_dim]
  int64_t q_stride;     // elements between tokens
  const char* pages;    // this layer's pages, at this KV head's part
  int64_t page_bytes;   // bytes between blocks
  const int32_t* block_table;  // [blocks of the sequence]
  const char* v_rows;          // V of the split, [TW_ATTENTION_SPLIT][v_dim], or NULL: V lies in the pages
  float* acc;                  // [queries, group, v_dim]: sum of exp(score - max) * v, not divided
  float* max;                  // [queries, group]: largest score of the split, -inf where nothing is visible
  float* sum;                  // [queries, group]: sum of exp(score - max), 0 where nothing is visible
  const uint8_t* gone;         // [blocks of the sequence], or NULL: 1 for a block that no query sees
  // [TW_ATTENTION_SPLIT / 16][queries, group], or NULL: of each tile of 16 positions that a query sees some
  // of, the largest score so far in the split, and the sum of exp(score - that) over the tile. Other tiles
  // are left alone.
  float *tile_max, *tile_sum;
} tw_attention_args;

// Each row is one (query, head). The kernel folds the splits in ascending order, adds the sink, and divides
// acc by sum.
typedef struct tw_attention_combine_args {
  int32_t rows;
  int32_t splits;
  int32_t v_dim;
  int32_t y_dtype;           // TW_F32 or TW_BF16
  const float* acc;          // [splits, rows, v_dim]
  const float* max;          // [splits, rows]
  const float* sum;          // [splits, rows]
  void* y;                   // row r is written at y + y_offsets[r] elements
  const int64_t* y_offsets;  // [rows]
  const float* sinks;        // [rows], or NULL
} tw_attention_combine_args;

// Joins what was noted of tiles to one softmax. Rows are columns of `max` and `sum`, which are
// [tiles][stride].
typedef struct tw_attention_shares_args {
  int32_t rows, tiles;
  int64_t stride;
  const float* max;  // tile_max
  // tile_sum; becomes sum * exp(max - the row's largest max): the tile's share, not divided by the total.
  float* sum;
  float* total;  // [rows]: the sum of a row's shares, in ascending order of the tiles
} tw_attention_shares_args;

// Turns a tile of K, a panel of 16 positions, into rows of V: the first `words` groups of 4 bytes of each
// position.
typedef struct tw_latent_values_args {
  int32_t words;
  const void* panel;  // [words or more][16 positions] groups of 4 bytes
  void* rows;         // [16 positions][words] groups of 4 bytes
} tw_latent_values_args;

typedef void (*tw_attention_fn)(const tw_attention_args*);
typedef void (*tw_attention_combine_fn)(const tw_attention_combine_args*);
typedef void (*tw_attention_shares_fn)(const tw_attention_shares_args*);
typedef void (*tw_latent_values_fn)(const tw_latent_values_args*);

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNEL_H_
