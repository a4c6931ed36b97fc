// What follows the sums of a matmul in the AVX-512 kernels, float and quantized: bias, activation, residual, rounding.
// In an unnamed namespace: this header is compiled under instruction-set flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_

#include "plugins/common/x86_avx512.h"
#include "plugins/matmul/kernel.h"

namespace {

constexpr int64_t kLanes = TW_LANES;
constexpr int64_t kUnit = 4;  // panels

int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bias, activation, residual, rounding: once the whole of K is summed. For P panels from `panel` of one row.
template <int P, bool Swiglu>
inline __attribute__((always_inline)) void finish_row(const tw_matmul_args& a, int64_t row, int64_t panel,
                                                      const float* sum) {
  constexpr int kPair = Swiglu ? 2 : 1;
#pragma GCC unroll 4
  for (int p = 0; p < P; p += kPair) {
    const int64_t column = (panel + p) / kPair * kLanes;
    const __mmask16 lanes = tw_lanes_avx512(a.n - column);
    __m512 value[kPair];
    for (int i = 0; i < kPair; ++i) {
      value[i] = _mm512_loadu_ps(sum + (p + i) * kLanes);
      if (!a.bias) continue;
      value[i] = _mm512_add_ps(value[i], _mm512_maskz_loadu_ps(lanes, a.bias + (panel + p + i) * kLanes));
    }
    __m512 y = Swiglu ? _mm512_mul_ps(tw_silu_avx512(value[0]), value[kPair - 1]) : value[0];
    if (a.residual) {
      y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, a.residual + row * a.residual_stride + column));
    }
    tw_store_avx512(a.y, a.y_dtype, row * a.y_stride + column, lanes, y);
  }
}

template <int P, bool Swiglu>
__attribute__((noinline)) void finish(const tw_matmul_args* args, int64_t row, int64_t rows, int64_t panel,
                                      const float* sum) {
  const tw_matmul_args a = *args;  // a copy: y cannot alias it
  for (int64_t r = 0; r < rows; ++r) finish_row<P, Swiglu>(a, row + r, panel, sum + r * kUnit * kLanes);
}

typedef void (*Finish)(const tw_matmul_args*, int64_t, int64_t, int64_t, const float*);

Finish finish_for(const tw_matmul_args* a, int64_t panels) {
  static const Finish plain[kUnit] = {finish<1, false>, finish<2, false>, finish<3, false>, finish<4, false>};
  if (a->epilogue == TW_EPILOGUE_SWIGLU) return panels == 4 ? finish<4, true> : finish<2, true>;
  return plain[panels - 1];
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_
