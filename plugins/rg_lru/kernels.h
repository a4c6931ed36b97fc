// The table of the rg_lru kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_RG_LRU_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_RG_LRU_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/rg_lru/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_rg_lru_fn>> rg_lru_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_RG_LRU_KERNELS_H_
