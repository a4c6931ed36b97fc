// 2:4 sparsity: which weights are kept, and the panels that hold them. sparsity.py is the definition.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_PRUNE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_PRUNE_H_

#include "plugins/matmul/pack.h"

namespace tensorwright {

// What pruning took away: the sum of squares. finite: false if a weight was infinite or NaN.
struct Pruned {
  double error = 0;
  bool finite = true;
};

// Copies rows [source.rows, k] to `to` as float32. Of each 4 neighbours along K it keeps the two with the
// largest magnitudes, of equal ones the first, and sets the others to 0.
Pruned prune_rows(const PackSource& source, float* to);

// Packs a dense panel (dtype TW_I8 or TW_I4) into the panel of a 2:4 sparse dtype. Of each 4 neighbours at
// most two are not 0; if fewer are, the first zeros are kept beside them.
void pack_sparse_panel(int dtype, int64_t k, int64_t group, const void* dense, void* panel);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_PRUNE_H_
