// weight_only_matmul for AVX-512 without BF16 instructions, with the same bits as scalar.cc.
#include "plugins/weight_only_matmul/x86_avx512.h"

extern "C" void tw_weight_only_matmul_f32_avx512(const tw_weight_only_matmul_args* a) {
  matmul<Avx512Set<F32, FewFloats, TW_F32>>(a);
}
extern "C" void tw_weight_only_matmul_bf16_avx512(const tw_weight_only_matmul_args* a) {
  matmul<Avx512Set<WidenedBf16, FewWidened, TW_BF16>>(a);
}
