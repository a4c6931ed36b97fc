#include "runtime/core/cuda/expressions.h"

#include <algorithm>
#include <bit>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

[[noreturn]] void refuse(size_t index, const char* why) {
  throw Error("EngineError",
              concat("[cuda] expression ", index, " of the plan ", why, "; rebuild the engine"));
}

int64_t computed(const Expression& e, int64_t a, int64_t b, size_t index) {
  int64_t result = 0;
  switch (e.op) {
    case ExpressionOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) refuse(index, "does not fit 64 bits");
      return result;
    case ExpressionOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) refuse(index, "does not fit 64 bits");
      return result;
    case ExpressionOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) refuse(index, "does not fit 64 bits");
      return result;
    case ExpressionOp::kFloorDivide:
    case ExpressionOp::kModulo: {
      if (b == 0 || b == -1) {
        if (b == 0) refuse(index, "divides by zero");
        if (e.op == ExpressionOp::kModulo) return 0;
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) refuse(index, "does not fit 64 bits");
        return result;
      }
      const int64_t quotient = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
      return e.op == ExpressionOp::kFloorDivide ? quotient : a - quotient * b;
    }
    case ExpressionOp::kMin:
      return std::min(a, b);
    case ExpressionOp::kMax:
      return std::max(a, b);
    case ExpressionOp::kBitLength:
      if (a < 0) refuse(index, "counts the bits of a negative number");
      return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(a)));
    case ExpressionOp::kLess:
      return a < b;
    case ExpressionOp::kLessEqual:
      return a <= b;
    case ExpressionOp::kEqual:
      return a == b;
    case ExpressionOp::kConstant:
    case ExpressionOp::kVariable:
      break;
  }
  refuse(index, "has an unknown operation");
}

}  // namespace

void evaluate(std::span<const Expression> expressions, std::span<const int64_t> variables,
              std::vector<int64_t>& values) {
  values.resize(expressions.size());
  for (size_t i = 0; i < expressions.size(); ++i) {
    const Expression& e = expressions[i];
    if (e.op == ExpressionOp::kConstant) {
      values[i] = e.a;
    } else if (e.op == ExpressionOp::kVariable) {
      values[i] = variables[static_cast<size_t>(e.a)];
    } else {
      const int64_t b = e.op == ExpressionOp::kBitLength ? 0 : values[static_cast<size_t>(e.b)];
      values[i] = computed(e, values[static_cast<size_t>(e.a)], b, i);
    }
  }
}

}  // namespace tensorwright
