// The table of the elementwise kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/elementwise/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_elementwise_fn>> elementwise_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_ELEMENTWISE_KERNELS_H_
