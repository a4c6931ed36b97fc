// The table of the delta_rule kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/delta_rule/kernel.h"

namespace tensorwright {

std::span<const KernelEntry<tw_delta_rule_fn>> delta_rule_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNELS_H_
