// Which instructions multiply rows by a stored matrix that lies in panels.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PRODUCTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_PRODUCTS_H_

#include "runtime/core/plan/plan.h"

namespace tensorwright {

// Each cuts its first weight into shares of the threads by panels (plugins/matmul/tiling.h).
inline bool is_product(const Instruction& instruction) {
  switch (static_cast<Op>(instruction.op)) {
    case Op::kMatmul:
    case Op::kQuantizedMatmul:
    case Op::kWeightOnlyMatmul:
      return true;
    default:
      return false;
  }
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PRODUCTS_H_
