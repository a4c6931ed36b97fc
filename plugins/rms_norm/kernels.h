// The table of the rms_norm kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_RMS_NORM_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_RMS_NORM_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/rms_norm/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_rms_norm_fn>> rms_norm_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_RMS_NORM_KERNELS_H_
