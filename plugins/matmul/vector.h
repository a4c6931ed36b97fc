// Constants and functions that the float and quantized matmul kernels of every instruction set share.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_H_

#include "plugins/common/vector_activation.h"
#include "plugins/matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kLanes = TW_LANES;
constexpr int64_t kUnit = 4;  // panels

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_VECTOR_H_
