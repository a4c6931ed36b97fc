// The table of the swiglu kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_SWIGLU_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_SWIGLU_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/swiglu/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_swiglu_fn>> swiglu_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_SWIGLU_KERNELS_H_
