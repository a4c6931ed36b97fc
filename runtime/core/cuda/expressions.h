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

// The values of expressions at the sizes of one step. One that has none there, since it divides by zero,
// counts the bits of a negative number or does not fit 64 bits, is an error only for who asks for it: an
// expression may belong to launches that steps of these sizes do not make.
class ExpressionValues {
 public:
  ExpressionValues(std::span<const Expression> expressions, std::span<const int64_t> variables);

  // Throws Error{"EngineError"} if the expression has no value.
  int64_t operator[](uint32_t index) const {
    if (!known_[index]) refuse(index);
    return values_[index];
  }

 private:
  [[noreturn]] static void refuse(uint32_t index);

  std::vector<int64_t> values_;
  std::vector<uint8_t> known_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_EXPRESSIONS_H_
