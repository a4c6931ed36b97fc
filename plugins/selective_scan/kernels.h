// The table of the selective_scan kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/selective_scan/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_selective_scan_fn>> selective_scan_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_SELECTIVE_SCAN_KERNELS_H_
