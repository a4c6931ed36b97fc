#include "runtime/core/cuda/expressions.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

namespace {

// Computes an operation. Returns whether it has a value.
bool compute(ExpressionOp op, int64_t a, int64_t b, int64_t& result) {
  switch (op) {
    case ExpressionOp::kAdd:
      return !__builtin_add_overflow(a, b, &result);
    case ExpressionOp::kSubtract:
      return !__builtin_sub_overflow(a, b, &result);
    case ExpressionOp::kMultiply:
      return !__builtin_mul_overflow(a, b, &result);
    case ExpressionOp::kFloorDivide:
    case ExpressionOp::kModulo: {
      if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return false;
      const int64_t quotient = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
      result = op == ExpressionOp::kFloorDivide ? quotient : a - quotient * b;
      return true;
    }
    case ExpressionOp::kMin:
      result = std::min(a, b);
      return true;
    case ExpressionOp::kMax:
      result = std::max(a, b);
      return true;
    case ExpressionOp::kBitLength:
      result = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(a)));
      return a >= 0;
    case ExpressionOp::kLess:
      result = a < b;
      return true;
    case ExpressionOp::kLessEqual:
      result = a <= b;
      return true;
    case ExpressionOp::kEqual:
      result = a == b;
      return true;
    case ExpressionOp::kConstant:
    case ExpressionOp::kVariable:
      break;
  }
  return false;
}

}  // namespace

ExpressionValues::ExpressionValues(std::span<const Expression> expressions,
                                   std::span<const int64_t> variables)
    : values_(expressions.size()), known_(expressions.size()) {
  for (size_t i = 0; i < expressions.size(); ++i) {
    const Expression& e = expressions[i];
    if (e.op == ExpressionOp::kConstant || e.op == ExpressionOp::kVariable) {
      values_[i] = e.op == ExpressionOp::kConstant ? e.a : variables[static_cast<size_t>(e.a)];
      known_[i] = 1;
      continue;
    }
    const auto a = static_cast<size_t>(e.a),
               b = e.op == ExpressionOp::kBitLength ? a : static_cast<size_t>(e.b);
    known_[i] = known_[a] && known_[b] && compute(e.op, values_[a], values_[b], values_[i]);
  }
}

void ExpressionValues::refuse(uint32_t index) {
  throw Error("EngineError",
              concat("[cuda] expression ", index,
                     " of the plan has no value in a step of these sizes; rebuild the engine"));
}

}  // namespace tensorwright
