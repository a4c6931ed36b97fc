// matmul for AVX-512 without BF16 instructions: fp32, and bf16 by exact widening. Same bits as scalar.cc.
#include "plugins/matmul/x86_avx512.h"

namespace {

struct F32 {
  static constexpr int64_t kRowsAtOnce = 6;
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), acc);
  }
};

// A group holds k in its low half and k + 1 in its high half.
struct WidenedBf16 {
  static constexpr int64_t kRowsAtOnce = 5;  // widened weights take twice the registers
  static inline __m512 low(__m512i pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
  static inline __m512 high(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
  }
  static inline __m512 step(__m512 acc, __m512i x, __m512i w) {
    acc = _mm512_fmadd_ps(low(x), low(w), acc);
    return _mm512_fmadd_ps(high(x), high(w), acc);
  }
};

}  // namespace

extern "C" void tw_matmul_f32_avx512(const tw_matmul_args* a) { matmul<F32>(a, TW_F32); }
extern "C" void tw_matmul_bf16_avx512(const tw_matmul_args* a) { matmul<WidenedBf16>(a, TW_BF16); }
