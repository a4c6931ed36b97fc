// concat: y = the columns of x0, then those of x1, x2 and x3, float32.
#include <cstring>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int kInputs = 4;

class Concat : public Operation {
 public:
  Concat(const Instruction& instruction, const OpContext& context) : y_(context.buffer(instruction.out[0])) {
    for (; inputs_ < kInputs && instruction.in[inputs_] >= 0; ++inputs_) {
      x_[inputs_] = context.buffer(instruction.in[inputs_]);
    }
  }

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        char* y = y_.at(view, row);
        for (int i = 0; i < inputs_; ++i) {
          const auto bytes = static_cast<size_t>(x_[i].row_bytes());
          std::memcpy(y, x_[i].at(view, row), bytes);
          y += bytes;
        }
      }
    });
  }

  Cost cost(const StepView& view) const override { return {2 * y_.rows(view) * y_.row_bytes(), 0}; }

 private:
  BufferRef x_[kInputs], y_;
  int inputs_ = 0;
};

}  // namespace

void check_concat(const InstructionCheck& c) {
  c.require_same_kind();
  c.require_float32("y", c.out(0));
  uint64_t cols = 0;
  for (int i = 0; i < kInputs; ++i) {
    c.require_float32("every input", c.in(i));
    c.require(i == 0 || !c.in(i) || c.in(i - 1), "in[", i, "] needs in[", i - 1, "]");
    cols += c.in(i) ? c.in(i)->cols : 0;
  }
  c.require_cols("y", c.out(0), cols);
}

std::unique_ptr<Operation> make_concat(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Concat>(instruction, context);
}

}  // namespace tensorwright
