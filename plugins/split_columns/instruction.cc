// split_columns: taken = some columns of x, and rest = x with zeros in them. rest may be written over x, and
// then a row costs a few moves, whatever its width.
#include <cstring>
#include <vector>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class SplitColumns : public Operation {
 public:
  SplitColumns(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        rest_(context.buffer(instruction.out[0])),
        taken_(context.buffer(instruction.out[1])) {
    const float* numbers = context.weight_floats(instruction.weight[0]);
    for (int32_t i = 0; i < taken_.cols; ++i) {
      // The numbers are data of weights.bin, which the check of the plan does not see.
      const bool inside = numbers[i] >= 0 && numbers[i] < static_cast<float>(x_.cols);
      if (!inside) refuse_plan(concat("split_columns: column ", numbers[i], " is not one of ", x_.cols));
      columns_.push_back(static_cast<size_t>(numbers[i]));
    }
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const size_t bytes = tw_dtype_bytes(x_.dtype);
    split_rows(team, rest_.rows(view), rest_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const char* x = x_.at(view, row);
        char* rest = rest_.at(view, row);
        char* taken = taken_.at(view, row);
        for (const size_t column : columns_) {
          std::memcpy(taken, x + column * bytes, bytes);
          taken += bytes;
        }
        if (rest != x) std::memcpy(rest, x, static_cast<size_t>(x_.row_bytes()));
        for (const size_t column : columns_) std::memset(rest + column * bytes, 0, bytes);
      }
    });
  }

  Cost cost(const StepView& view) const override {
    return {rest_.rows(view) * (2 * rest_.row_bytes() + taken_.row_bytes()), 0};
  }

 private:
  BufferRef x_, rest_, taken_;
  std::vector<size_t> columns_;
};

}  // namespace

void check_split_columns(const InstructionCheck& c) {
  c.require_same_kind();
  for (int i = 0; i < 2; ++i) {
    c.require(c.out(i)->dtype == c.in(0)->dtype, "both results must have x's dtype ", c.in(0)->dtype,
              ", one has ", c.out(i)->dtype);
  }
  c.require_cols("rest", c.out(0), c.in(0)->cols);
  c.require_raw("columns", c.weight(0), c.out(1)->cols);
}

std::unique_ptr<Operation> make_split_columns(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<SplitColumns>(instruction, context);
}

}  // namespace tensorwright
