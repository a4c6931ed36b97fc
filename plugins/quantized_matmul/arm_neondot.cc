// quantized_matmul for NEON with SDOT, with the same bits as scalar.cc.
#include "plugins/common/arm_dot.h"
#include "plugins/common/arm_neon.h"
#include "plugins/quantized_matmul/arm_registers.h"

#define TW_NEONDOT(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_neondot(const tw_quantized_matmul_args* a) { \
    run<Dots<DotProducts>, DotProducts, dtype>(a);                                          \
  }
TW_FOR_EACH_QUANTIZED(TW_NEONDOT)
#undef TW_NEONDOT
