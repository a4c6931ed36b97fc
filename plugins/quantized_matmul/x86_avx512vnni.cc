// quantized_matmul for AVX-512 with VNNI, with the same bits as scalar.cc.
#include "plugins/quantized_matmul/x86_avx512_cut.h"

#define TW_AVX512VNNI(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_avx512vnni(const tw_quantized_matmul_args* a) { \
    run_in_registers<dtype>(a);                                                                \
  }
TW_FOR_EACH_QUANTIZED(TW_AVX512VNNI)
#undef TW_AVX512VNNI
