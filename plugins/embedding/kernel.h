// embedding: y[t, :] = scale * table[ids[t], :]. The table is in the packed panels of a matmul weight, or in
// those of a quantized matmul weight.
#ifndef TENSORWRIGHT_PLUGINS_EMBEDDING_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_EMBEDDING_KERNEL_H_

#include "plugins/common/kernel_types.h"

enum tw_embedding_ids { TW_IDS_TOKENS = 0, TW_IDS_POSITIONS = 1 };  // what the rows are gathered by

typedef struct tw_embedding_args {
  int32_t tokens;
  int32_t width;       // columns of the table
  const int32_t* ids;  // [tokens], already checked against the table's rows
  const void* table;   // [ceil(rows / 16)] panels of the kernel's dtype
  float scale;
  float* y;          // [tokens, width]
  int64_t y_stride;  // elements
  int32_t group;     // the group of a quantized table, see plugins/quantized_matmul/layout.h
} tw_embedding_args;

typedef void (*tw_embedding_fn)(const tw_embedding_args*);

#endif  // TENSORWRIGHT_PLUGINS_EMBEDDING_KERNEL_H_
