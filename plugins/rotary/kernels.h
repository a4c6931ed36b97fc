// The tables of the rotary kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_ROTARY_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_ROTARY_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/rotary/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_rotary_table_fn>> rotary_table_kernels();
std::span<const KernelEntry<tw_rotary_kv_write_fn>> rotary_kv_write_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_ROTARY_KERNELS_H_
