// The table of the causal_conv kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNELS_H_

#include "plugins/causal_conv/kernel.h"
#include "plugins/common/dispatch.h"

namespace tensorwright {

std::span<const KernelEntry<tw_causal_conv_fn>> causal_conv_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_CAUSAL_CONV_KERNELS_H_
