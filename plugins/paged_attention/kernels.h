// The tables of the paged_attention kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/paged_attention/kernel.h"

namespace tensorwright {

// dtype: the dtype of the cache, TW_F32, TW_BF16, TW_I8 or TW_I4. Throws Error{"EngineError"} for any other.
std::span<const KernelEntry<tw_attention_fn>> attention_kernels(int dtype);
std::span<const KernelEntry<tw_attention_combine_fn>> attention_combine_kernels();
std::span<const KernelEntry<tw_attention_shares_fn>> attention_shares_kernels();
std::span<const KernelEntry<tw_latent_values_fn>> latent_values_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_KERNELS_H_
