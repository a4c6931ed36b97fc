// The table of the matmul kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/matmul/kernel.h"

namespace tensorwright {

// dtype: the dtype of x and of the weights, TW_F32 or TW_BF16.
std::span<const KernelEntry<tw_matmul_fn>> matmul_kernels(int dtype);

// x is float32 and the weights are bfloat16, which are widened: the bits of float32 weights of the same
// numbers. Adapters are multiplied so. AVX-512 has no entry of its own.
std::span<const KernelEntry<tw_matmul_fn>> matmul_by_bf16_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_KERNELS_H_
