// Whole numbers that depend on the sizes of a step: grids, arguments and conditions of launches. The builder
// writes them as a list in which each one takes those before it (builder/emit/cuda/sizes.py).
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_EXPRESSIONS_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_EXPRESSIONS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace tensorwright {

enum class ExpressionOp : uint32_t {
  kConstant = 0,  // a is the value
  kVariable,      // a is the number of the variable
  kAdd,
  kSubtract,
  kMultiply,
  kFloorDivide,
  kModulo,  // with the sign of b
  kMin,
  kMax,
  kBitLength,  // of a >= 0
  kLess,
  kLessEqual,
  kEqual,
};
inline constexpr uint32_t kExpressionOps = 13;

struct Expression {
  ExpressionOp op;
  int64_t a, b;  // numbers of earlier expressions, but for constants and variables
};

// Computes all expressions from the variables. Throws Error{"EngineError"} if one divides by zero, counts the
// bits of a negative number, or does not fit 64 bits.
void evaluate(std::span<const Expression> expressions, std::span<const int64_t> variables,
              std::vector<int64_t>& values);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_EXPRESSIONS_H_
