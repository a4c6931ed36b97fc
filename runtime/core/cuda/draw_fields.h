// The numbers by which the kernels of draw_tokens know how a row's token is drawn. plugins/draw_tokens/op.py
// names and explains them.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_DRAW_FIELDS_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_DRAW_FIELDS_H_

#include <cstddef>
#include <cstdint>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// FIELDS of op.py: where each number stands.
enum DrawField : size_t { kMode = 0, kTemperature, kTopK, kUniform, kKeptShare, kDistance };

inline constexpr size_t kDrawFields = 8;

// Writes the kDrawFields numbers of a row.
void write_draw(const RowDraw& draw, int32_t* to);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_DRAW_FIELDS_H_
