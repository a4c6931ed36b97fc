// The steps after the sums of a float or quantized matmul in the AVX-512 kernels: addend, bias, activation,
// residual and rounding. All of it is in an unnamed namespace, because this header is compiled under
// instruction-set flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_

#include "plugins/common/x86_avx512.h"
#include "plugins/matmul/vector.h"

namespace {

// Finishes P panels, from `panel` on, of one row, once the whole of K is summed.
template <int P, int kEpilogue>
inline __attribute__((always_inline)) void finish_row(const tw_matmul_args& a, int64_t row, int64_t panel,
                                                      const float* sum) {
  constexpr int kPair = kEpilogue == TW_EPILOGUE_NONE ? 1 : 2;
  const float* addend = a.addends ? a.addends[row] : NULL;
#pragma GCC unroll 4
  for (int p = 0; p < P; p += kPair) {
    const int64_t column = (panel + p) / kPair * kLanes;
    const __mmask16 lanes = tw_lanes_avx512(a.n - column);
    __m512 value[kPair];
    for (int i = 0; i < kPair; ++i) {
      value[i] = _mm512_loadu_ps(sum + (p + i) * kLanes);
      if (addend)
        value[i] = _mm512_add_ps(value[i], _mm512_loadu_ps(addend + tw_addend_at(&a, panel + p + i)));
      if (!a.bias) continue;
      value[i] = _mm512_add_ps(value[i], _mm512_maskz_loadu_ps(lanes, a.bias + (panel + p + i) * kLanes));
    }
    __m512 y = value[0];
    if constexpr (kPair == 2) y = _mm512_mul_ps(activate_lanes<Avx512, kEpilogue - 1>(y), value[1]);
    if (a.residual) {
      y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, a.residual + row * a.residual_stride + column));
    }
    tw_store_avx512(a.y, a.y_dtype, row * a.y_stride + column, lanes, y);
  }
}

template <int P, int kEpilogue>
__attribute__((noinline)) void finish(const tw_matmul_args* args, int64_t row, int64_t rows, int64_t panel,
                                      const float* sum) {
  const tw_matmul_args a = *args;  // a copy: y cannot alias it
  for (int64_t r = 0; r < rows; ++r) finish_row<P, kEpilogue>(a, row + r, panel, sum + r * kUnit * kLanes);
}

typedef void (*Finish)(const tw_matmul_args*, int64_t, int64_t, int64_t, const float*);

Finish finish_for(const tw_matmul_args* a, int64_t panels) {
  static const Finish plain[kUnit] = {finish<1, 0>, finish<2, 0>, finish<3, 0>, finish<4, 0>};
  static const Finish gated[TW_EPILOGUE_LAST][2] = {{finish<2, 1>, finish<4, 1>},
                                                    {finish<2, 2>, finish<4, 2>},
                                                    {finish<2, 3>, finish<4, 3>},
                                                    {finish<2, 4>, finish<4, 4>}};
  return a->epilogue == TW_EPILOGUE_NONE ? plain[panels - 1] : gated[a->epilogue - 1][panels / 4];
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_FINISH_H_
