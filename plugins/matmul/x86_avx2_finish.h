// The steps after the sums of a float or quantized matmul in the kernels of 256 bits: addend, bias,
// activation, residual and rounding. All of it is in an unnamed namespace, because this header is compiled
// under instruction-set flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX2_FINISH_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX2_FINISH_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/matmul/x86.h"

namespace {

// Finishes the half panels of one row, once the whole of K is summed.
template <int kEpilogue>
void finish_row(const tw_matmul_args& a, int64_t row, int64_t panel, int64_t panels, const float* sum) {
  constexpr int64_t pair = kEpilogue == TW_EPILOGUE_NONE ? 1 : 2;
  const float* addend = a.addends ? a.addends[row] : NULL;
  for (int64_t p = 0; p < panels; p += pair) {
    const int64_t first = (panel + p) / pair * kLanes;
    for (int64_t lane = 0; lane < kLanes && first + lane < a.n; lane += 8) {
      const int64_t column = first + lane, count = a.n - column;
      __m256 value[2];
      for (int64_t i = 0; i < pair; ++i) {
        value[i] = _mm256_loadu_ps(sum + (p + i) * kLanes + lane);
        if (addend)
          value[i] =
              _mm256_add_ps(value[i], _mm256_loadu_ps(addend + tw_addend_at(&a, panel + p + i) + lane));
        if (!a.bias) continue;
        value[i] = _mm256_add_ps(value[i], tw_load_avx2(a.bias + (panel + p + i) * kLanes + lane, count));
      }
      __m256 y = value[0];
      if constexpr (pair == 2) y = _mm256_mul_ps(activate_lanes<Avx2, kEpilogue - 1>(y), value[1]);
      if (a.residual) {
        y = _mm256_add_ps(y, tw_load_avx2(a.residual + row * a.residual_stride + column, count));
      }
      tw_store_avx2(a.y, a.y_dtype, row * a.y_stride + column, count, y);
    }
  }
}

typedef void (*FinishRow)(const tw_matmul_args&, int64_t, int64_t, int64_t, const float*);

FinishRow finish_row_for(int32_t epilogue) {
  static const FinishRow table[TW_EPILOGUE_LAST + 1] = {finish_row<0>, finish_row<1>, finish_row<2>,
                                                        finish_row<3>, finish_row<4>};
  return table[epilogue];
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX2_FINISH_H_
