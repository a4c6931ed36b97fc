// add: y = a + b, float32. The code is plain: the compiler vectorises it, and every width gives the same
// bits.
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class Add : public Operation {
 public:
  Add(const Instruction& instruction, const OpContext& context)
      : a_(context.buffer(instruction.in[0])),
        b_(context.buffer(instruction.in[1])),
        y_(context.buffer(instruction.out[0])) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const float* a = a_.floats(view, row);
        const float* b = b_.floats(view, row);
        float* y = y_.floats(view, row);
        for (int32_t c = 0; c < y_.cols; ++c) y[c] = a[c] + b[c];
      }
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    return {3 * rows * y_.row_bytes(), rows * y_.cols};
  }

 private:
  BufferRef a_, b_, y_;
};

}  // namespace

void check_add(const InstructionCheck& c) {
  c.require_same_kind();
  c.require_float32("a", c.in(0));
  c.require_float32("b", c.in(1));
  c.require_float32("y", c.out(0));
  c.require_cols("a", c.in(0), c.out(0)->cols);
  c.require_cols("b", c.in(1), c.out(0)->cols);
}

std::unique_ptr<Operation> make_add(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Add>(instruction, context);
}

}  // namespace tensorwright
