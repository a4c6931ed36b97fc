// The tables of the quantized_matmul kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/quantized_matmul/kernel.h"

namespace tensorwright {

// dtype: the dtype of the weights, one that tw_codec knows.
std::span<const KernelEntry<tw_quantized_matmul_fn>> quantized_matmul_kernels(int dtype);
// These kernels quantize the rows of x before a quantized matmul.
std::span<const KernelEntry<tw_quantize_rows_fn>> quantize_rows_kernels();
// These kernels quantize weights when an engine is built.
std::span<const KernelEntry<tw_quantize_weights_fn>> quantize_weights_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_KERNELS_H_
