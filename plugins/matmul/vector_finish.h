// The steps after the sums of a float or quantized matmul in the kernels of 8 lanes: addend, bias,
// activation, residual and rounding, for an instruction set `Set` (Avx2 or Neon). All of it is in an unnamed
// namespace, because this header is compiled under instruction-set flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_FINISH_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_FINISH_H_

#include "plugins/matmul/vector.h"

namespace {

// Finishes the panels of one row, a vector at a time, once the whole of K is summed.
template <class Set, int kEpilogue>
void finish_row(const tw_matmul_args& a, int64_t row, int64_t panel, int64_t panels, const float* sum) {
  constexpr int64_t pair = kEpilogue == TW_EPILOGUE_NONE ? 1 : 2;
  const float* addend = a.addends ? a.addends[row] : NULL;
  for (int64_t p = 0; p < panels; p += pair) {
    const int64_t first = (panel + p) / pair * kLanes;
    for (int64_t lane = 0; lane < kLanes && first + lane < a.n; lane += Set::kLanes) {
      const int64_t column = first + lane, count = a.n - column;
      typename Set::Vector value[2];
      for (int64_t i = 0; i < pair; ++i) {
        value[i] = Set::load(sum + (p + i) * kLanes + lane, Set::kLanes);
        if (addend) {
          const float* from = addend + tw_addend_at(&a, panel + p + i) + lane;
          value[i] = Set::add(value[i], Set::load(from, Set::kLanes));
        }
        if (!a.bias) continue;
        value[i] = Set::add(value[i], Set::load(a.bias + (panel + p + i) * kLanes + lane, count));
      }
      auto y = value[0];
      if constexpr (pair == 2) y = Set::mul(activate_lanes<Set, kEpilogue - 1>(y), value[1]);
      if (a.residual) y = Set::add(y, Set::load(a.residual + row * a.residual_stride + column, count));
      Set::store(a.y, a.y_dtype, row * a.y_stride + column, count, y);
    }
  }
}

typedef void (*FinishRow)(const tw_matmul_args&, int64_t, int64_t, int64_t, const float*);

template <class Set>
FinishRow finish_row_for(int32_t epilogue) {
  static const FinishRow table[TW_EPILOGUE_LAST + 1] = {
      finish_row<Set, 0>, finish_row<Set, 1>, finish_row<Set, 2>, finish_row<Set, 3>, finish_row<Set, 4>};
  return table[epilogue];
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_FINISH_H_
