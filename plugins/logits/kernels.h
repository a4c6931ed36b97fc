// The table of the logits kernels, best first.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_KERNELS_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_KERNELS_H_

#include "plugins/common/dispatch.h"
#include "plugins/logits/kernel.h"

namespace tensorwright {

// An entry is a set of loops over a row of logits, which sampling uses.
std::span<const KernelEntry<tw_logits_fn>> logits_kernels();

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_KERNELS_H_
