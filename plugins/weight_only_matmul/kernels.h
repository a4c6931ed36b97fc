// The table of the weight_only_matmul kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/weight_only_matmul/kernel.h"

namespace tensorwright {

// x_dtype: TW_F32 or TW_BF16. Every kernel takes weights of every dtype that tw_codec knows.
std::span<const KernelEntry<tw_weight_only_matmul_fn>> weight_only_matmul_kernels(int x_dtype);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_KERNELS_H_
