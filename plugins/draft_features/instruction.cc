// draft_features: y[t, :] = the features that the step carries for token t. The heads of a plan begin with
// it.
#include <cstring>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class DraftFeatures : public Operation {
 public:
  DraftFeatures(const Instruction& instruction, const OpContext& context)
      : y_(context.buffer(instruction.out[0])) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      for (int32_t row = begin; row < end; ++row) {
        const float* features = view.features + int64_t{row} * y_.cols;
        std::memcpy(y_.at(view, row), features, static_cast<size_t>(y_.row_bytes()));
      }
    });
  }

  Cost cost(const StepView& view) const override { return {2 * y_.rows(view) * y_.row_bytes(), 0}; }

 private:
  BufferRef y_;
};

}  // namespace

void check_draft_features(const InstructionCheck& c) {
  c.require(c.in(0), "target is missing: the plan has no features for its heads");
  for (const BufferRecord* buffer : {c.in(0), c.out(0)}) {
    c.require_kind("every buffer", buffer, BufferKind::kTokens);
    c.require_float32("every buffer", buffer);
  }
  c.require_cols("y", c.out(0), c.in(0)->cols);
  for (int i = 0; i < 2; ++i) {
    const int32_t index = c.instruction.ints[i];
    c.require(index >= 0 && static_cast<size_t>(index) < c.plan.buffers.size(), i == 0 ? "logits" : "hidden",
              " must be a buffer below ", c.plan.buffers.size(), ", is ", index);
    const BufferRecord& result = c.plan.buffers[static_cast<size_t>(index)];
    c.require_kind("every result of heads", &result, BufferKind::kRows);
    c.require_float32("every result of heads", &result);
  }
  const BufferRecord& hidden = c.plan.buffers[static_cast<size_t>(c.instruction.ints[1])];
  c.require_cols("hidden", &hidden, c.in(0)->cols);
}

std::unique_ptr<Operation> make_draft_features(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<DraftFeatures>(instruction, context);
}

}  // namespace tensorwright
