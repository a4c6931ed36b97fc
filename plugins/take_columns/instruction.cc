// take_columns: y[t, i] = x[t, columns[i]].
#include <cstring>
#include <vector>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

template <typename Element>
void take(const char* x, const std::vector<int32_t>& columns, char* y) {
  for (const int32_t column : columns) {
    std::memcpy(y, x + static_cast<size_t>(column) * sizeof(Element), sizeof(Element));
    y += sizeof(Element);
  }
}

class TakeColumns : public Operation {
 public:
  TakeColumns(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])), y_(context.buffer(instruction.out[0])) {
    const float* numbers = context.weight_floats(instruction.weight[0]);
    for (int32_t i = 0; i < y_.cols; ++i) {
      // The numbers are data of weights.bin, which the check of the plan does not see.
      const bool inside = numbers[i] >= 0 && numbers[i] < static_cast<float>(x_.cols);
      if (!inside) refuse_plan(concat("take_columns: column ", numbers[i], " is not one of ", x_.cols));
      columns_.push_back(static_cast<int32_t>(numbers[i]));
    }
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const auto row_of = x_.dtype == TW_F32 ? take<float> : take<uint16_t>;
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) row_of(x_.at(view, row), columns_, y_.at(view, row));
    });
  }

  Cost cost(const StepView& view) const override {
    return {y_.rows(view) * (x_.row_bytes() + y_.row_bytes()), 0};
  }

 private:
  BufferRef x_, y_;
  std::vector<int32_t> columns_;
};

}  // namespace

void check_take_columns(const InstructionCheck& c) {
  c.require_same_kind();
  c.require(c.out(0)->dtype == c.in(0)->dtype, "y must have x's dtype ", c.in(0)->dtype, ", has ",
            c.out(0)->dtype);
  c.require_raw("columns", c.weight(0), c.out(0)->cols);
}

std::unique_ptr<Operation> make_take_columns(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<TakeColumns>(instruction, context);
}

}  // namespace tensorwright
