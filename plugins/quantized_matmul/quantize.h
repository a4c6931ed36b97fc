// Quantizes weights into the panels of layout.h. quantize.py is the definition; the bytes are the same.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_QUANTIZE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_QUANTIZE_H_

#include "plugins/matmul/pack.h"
#include "plugins/quantized_matmul/kernels.h"

namespace tensorwright {

// The error of quantization: the sums of squares of the errors and of the weights.
struct QuantizationError {
  double error = 0, weight = 0;
  bool finite = true;  // false: a weight was infinite or NaN, and the panels mean nothing
};

// Quantizes `source` (TW_F32 or TW_BF16) into panels with weights of `dtype` (TW_I8 or TW_I4), `stride` bytes
// apart. group: 0 (whole rows, TW_I8 only), 32, 64 or 128. If the dtype is 2:4 sparse, the rows are pruned
// first (prune.h), and the error counts what that takes away. kernel: an entry of quantize_weights_kernels().
QuantizationError quantize_panels(tw_quantize_weights_fn kernel, int dtype, int64_t group,
                                  const PackSource& source, void* panels, int64_t stride);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_QUANTIZE_H_
