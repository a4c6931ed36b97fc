// weight_only_matmul for AVX-512 with BF16 dot instructions.
#include "plugins/weight_only_matmul/x86_avx512.h"

extern "C" void tw_weight_only_matmul_bf16_avx512bf16(const tw_weight_only_matmul_args* a) {
  matmul<Avx512Set<DotBf16, FewPairs, TW_BF16>>(a);
}
