// gather_rows: y[r, :] = x[logit_rows[r], :], from the tokens of the step to its logit rows.
#include <cstring>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class GatherRows : public Operation {
 public:
  GatherRows(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])), y_(context.buffer(instruction.out[0])) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const int32_t token = view.step.logit_rows[static_cast<size_t>(row)];
        std::memcpy(y_.at(view, row), x_.at(view, token), static_cast<size_t>(x_.row_bytes()));
      }
    });
  }

  Cost cost(const StepView& view) const override { return {2 * y_.rows(view) * y_.row_bytes(), 0}; }

 private:
  BufferRef x_, y_;
};

}  // namespace

void check_gather_rows(const InstructionCheck& c) {
  c.require_kind("x", c.in(0), BufferKind::kTokens);
  c.require_kind("y", c.out(0), BufferKind::kRows);
  c.require(c.in(0)->dtype == c.out(0)->dtype, "y must have x's dtype ", c.in(0)->dtype, ", has ",
            c.out(0)->dtype);
  c.require_cols("y", c.out(0), c.in(0)->cols);
}

std::unique_ptr<Operation> make_gather_rows(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<GatherRows>(instruction, context);
}

}  // namespace tensorwright
