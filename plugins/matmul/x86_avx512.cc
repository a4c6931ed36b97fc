// matmul for AVX-512 without BF16 instructions: fp32, and bf16 by exact widening. Same bits as scalar.cc.
#include "plugins/matmul/x86_avx512.h"

extern "C" void tw_matmul_f32_avx512(const tw_matmul_args* a) { matmul<F32>(a, TW_F32); }
extern "C" void tw_matmul_bf16_avx512(const tw_matmul_args* a) { matmul<WidenedBf16>(a, TW_BF16); }
