// matmul for AVX-512 with BF16 dot instructions: pairs (k, k + 1), K ascending.
#include "plugins/matmul/x86_avx512.h"

extern "C" void tw_matmul_bf16_avx512bf16(const tw_matmul_args* a) { matmul<DotBf16>(a, TW_BF16); }
