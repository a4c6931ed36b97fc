// route: chooses the k experts with the largest logits for each row, and computes their weights.
#include "plugins/common/exp.h"
#include "plugins/route/choose.h"
#include "plugins/route/layout.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

// Sums the terms in the order of the slots, or if all experts count, in the order of the experts.
void write_weights(const float* logits, int32_t experts, int32_t k, bool normalise, const int32_t* index,
                   float* weights) {
  const float largest = logits[index[0]];
  float sum = 0.0f;
  for (int32_t slot = 0; slot < k; ++slot) weights[slot] = tw_exp(logits[index[slot]] - largest);
  if (normalise) {
    for (int32_t slot = 0; slot < k; ++slot) sum += weights[slot];
  } else {
    for (int32_t expert = 0; expert < experts; ++expert) sum += tw_exp(logits[expert] - largest);
  }
  for (int32_t slot = 0; slot < k; ++slot) weights[slot] /= sum;
}

class Route : public Operation {
 public:
  Route(const Instruction& instruction, const OpContext& context)
      : logits_(context.buffer(instruction.in[0])),
        index_(context.buffer(instruction.out[0])),
        weights_(context.buffer(instruction.out[1])),
        normalise_(instruction.ints[1] != 0) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_rows(
        team, logits_.rows(view), int64_t{logits_.cols} * index_.cols, [&](int32_t begin, int32_t end) {
          for (int32_t row = begin; row < end; ++row) {
            const float* logits = logits_.floats(view, row);
            auto* index = reinterpret_cast<int32_t*>(index_.at(view, row));
            choose_largest(logits, logits_.cols, index_.cols, index);
            write_weights(logits, logits_.cols, index_.cols, normalise_, index, weights_.floats(view, row));
          }
        });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = logits_.rows(view);
    return {rows * (logits_.row_bytes() + index_.row_bytes() + weights_.row_bytes()),
            rows * logits_.cols * index_.cols};
  }

 private:
  BufferRef logits_, index_, weights_;
  bool normalise_;
};

}  // namespace

void check_route(const InstructionCheck& c) {
  const int32_t k = c.instruction.ints[0], normalise = c.instruction.ints[1];
  c.require_same_kind();
  c.require_float32("logits", c.in(0));
  c.require(k >= 1 && static_cast<uint32_t>(k) <= c.in(0)->cols, "k must be 1 to the ", c.in(0)->cols,
            " cols of logits, is ", k);
  c.require(uint64_t{c.in(0)->cols} * static_cast<uint64_t>(k) <= TW_MAX_ROUTE_COMPARISONS,
            "the cols of logits times k must be at most ", int{TW_MAX_ROUTE_COMPARISONS}, ", are ",
            c.in(0)->cols, " times ", k);
  c.require(normalise == 0 || normalise == 1, "normalise must be 0 or 1, is ", normalise);
  c.require(c.out(0)->dtype == TW_I32, "index must be int32, has dtype ", c.out(0)->dtype);
  c.require_float32("weights", c.out(1));
  c.require_cols("index", c.out(0), static_cast<uint64_t>(k));
  c.require_cols("weights", c.out(1), static_cast<uint64_t>(k));
}

std::unique_ptr<Operation> make_route(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Route>(instruction, context);
}

}  // namespace tensorwright
