// The table of the layer_norm kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/layer_norm/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_layer_norm_fn>> layer_norm_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_LAYER_NORM_KERNELS_H_
