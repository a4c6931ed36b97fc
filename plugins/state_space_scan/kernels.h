// The table of the state_space_scan kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/state_space_scan/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_state_space_scan_fn>> state_space_scan_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_KERNELS_H_
