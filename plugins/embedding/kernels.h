// The table of the embedding kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_EMBEDDING_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_EMBEDDING_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/embedding/kernel.h"

namespace tensorwright {

// dtype: the table's dtype, TW_F32, TW_BF16, or one of quantized weights.
std::span<const KernelEntry<tw_embedding_fn>> embedding_kernels(int dtype);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_EMBEDDING_KERNELS_H_
