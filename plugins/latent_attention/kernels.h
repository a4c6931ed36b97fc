// The table of the latent_kv_write kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/latent_attention/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_latent_kv_write_fn>> latent_kv_write_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_LATENT_ATTENTION_KERNELS_H_
