// matmul for AVX-512 with BF16 dot instructions: pairs (k, k + 1), K ascending.
#include "plugins/matmul/x86_avx512.h"

namespace {

struct DotBf16 {
  static constexpr int64_t kRowsAtOnce = 6;
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
  }
};

}  // namespace

extern "C" void tw_matmul_bf16_avx512bf16(const tw_matmul_args* a) { matmul<DotBf16>(a, TW_BF16); }
