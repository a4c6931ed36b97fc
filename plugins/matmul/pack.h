// The packed weight layout: panels of 16 rows, zero-padded, K interleaved by 4 bytes. Byte o of a panel, with
// e bytes per element and g = 4 / e, is element k = o / 64 * g + o % 4 / e of row o % 64 / 4. The layout can
// be inverted.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_PACK_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_PACK_H_

#include "plugins/common/kernel_types.h"

namespace tensorwright {

// Rows of a matrix [rows, k] of TW_F32 or TW_BF16 in memory. To pack a larger matrix part by part, pass any
// range of its rows that is aligned to 16.
struct PackSource {
  const void* data;
  int dtype;
  int64_t stride;  // elements between rows
  int64_t rows, k;
};

// Returns the number of panels that hold `rows` rows of a matrix.
inline int64_t panels_of(int64_t rows) { return (rows + TW_LANES - 1) / TW_LANES; }

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_PACK_H_
