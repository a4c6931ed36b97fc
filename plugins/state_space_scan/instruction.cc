// carried_scan: state_space_scan over each sequence of the step. A task is one head of one sequence.
#include <cmath>
#include <vector>

#include "plugins/common/exp.h"
#include "plugins/state_space_scan/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class CarriedScan : public Operation {
 public:
  CarriedScan(const Instruction& instruction, const OpContext& context)
      : row_(context.buffer(instruction.in[0])),
        dt_(context.buffer(instruction.in[1])),
        y_(context.buffer(instruction.out[0])),
        storage_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        heads_(instruction.ints[1]),
        groups_(instruction.ints[2]),
        states_(instruction.ints[3]),
        width_(y_.cols / heads_),
        dt_min_(instruction.floats[0]),
        dt_max_(instruction.floats[1]),
        w_(context.weight_floats(instruction.weight[0])),
        kernel_(choose("state_space_scan", state_space_scan_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_sequences(view, team, heads_, [&](int32_t seq, int32_t head) {
      const int32_t group = head / (heads_ / groups_);
      const int32_t* start = view.step.seq_starts.data() + seq;
      const float* row = row_.floats(view, start[0]);
      tw_state_space_scan_args args{};
      args.tokens = start[1] - start[0];
      args.width = width_;
      args.states = states_;
      args.fresh = view.step.first_position(seq) == 0;
      args.y_dtype = y_.dtype;
      args.a = -tw_exp(w_[head]);
      args.d = w_[heads_ + head];
      args.dt_bias = w_[2 * heads_ + head];
      args.dt_min = dt_min_;
      args.dt_max = dt_max_;
      args.x = row + head * width_;
      args.b = row + y_.cols + group * states_;
      args.c = args.b + groups_ * states_;
      args.x_stride = row_.stride;
      args.dt = dt_.floats(view, start[0]) + head;
      args.dt_stride = dt_.stride;
      const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
      args.state = reinterpret_cast<float*>(storage_.at(state_, slot)) + int64_t{head} * states_ * width_;
      args.y = y_.at(view, start[0]);
      args.y_begin = int64_t{head} * width_;
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t tokens = y_.rows(view), elements = int64_t{y_.cols} * states_;
    return {tokens * (row_.row_bytes() + dt_.row_bytes() + y_.row_bytes()) + view.step.seqs() * elements * 8,
            tokens * elements * 5};
  }

 private:
  BufferRef row_, dt_, y_;
  StateStorage& storage_;
  size_t state_;
  int32_t heads_, groups_, states_, width_;
  float dt_min_, dt_max_;
  const float* w_;  // [3, heads]: log(-a), d, dt_bias
  tw_state_space_scan_fn kernel_;
};

}  // namespace

void check_carried_scan(const InstructionCheck& c) {
  const int32_t heads = c.instruction.ints[1], groups = c.instruction.ints[2], states = c.instruction.ints[3];
  const uint64_t state_bytes = c.state().bytes, cols = c.out(0)->cols;
  c.require(heads >= 1 && heads <= c.kMaxHeads && groups >= 1 && groups <= heads && heads % groups == 0,
            "heads must be a multiple of groups up to ", c.kMaxHeads, ", are ", heads, " and ", groups);
  c.require(states >= 1 && states <= c.kMaxStates, "states must be 1 to ", c.kMaxStates, ", is ", states);
  c.require(cols >= 1 && cols % static_cast<uint64_t>(heads) == 0, "y must have a multiple of ", heads,
            " cols, has ", cols);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  c.require_float32("row", c.in(0));
  c.require_float32("dt", c.in(1));
  const auto each = static_cast<uint64_t>(groups) * static_cast<uint64_t>(states);
  c.require_cols("row", c.in(0), cols + 2 * each);
  c.require_cols("dt", c.in(1), static_cast<uint64_t>(heads));
  c.require_raw("w", c.weight(0), 3 * static_cast<uint64_t>(heads));
  c.require(std::isfinite(c.instruction.floats[0]) && std::isfinite(c.instruction.floats[1]) &&
                c.instruction.floats[0] <= c.instruction.floats[1],
            "dt_min must be at most dt_max");
  c.require(cols * static_cast<uint64_t>(states) * 4 <= state_bytes, "the state must have ",
            cols * static_cast<uint64_t>(states) * 4, " bytes, has ", state_bytes);
}

std::unique_ptr<Operation> make_carried_scan(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<CarriedScan>(instruction, context);
}

}  // namespace tensorwright
