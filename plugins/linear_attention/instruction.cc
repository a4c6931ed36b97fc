// carried_linear_attention: linear_attention over each sequence of the step, by the kernels of
// state_space_scan with steps of 1. A task is one head of one sequence.
#include "plugins/state_space_scan/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

// What the kernels make steps of: one number for all tokens, and the limits make 1 of it.
constexpr float kNoStep = 0.0f;

class CarriedLinearAttention : public Operation {
 public:
  CarriedLinearAttention(const Instruction& instruction, const OpContext& context)
      : row_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        storage_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        heads_(instruction.ints[1]),
        states_(instruction.ints[2]),
        width_(y_.cols / heads_),
        w_(context.weight_floats(instruction.weight[0])),
        kernel_(choose("state_space_scan", state_space_scan_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_sequences(view, team, heads_, [&](int32_t seq, int32_t head) {
      const int32_t* start = view.step.seq_starts.data() + seq;
      const float* row = row_.floats(view, start[0]);
      tw_state_space_scan_args args{};
      args.tokens = start[1] - start[0];
      args.width = width_;
      args.states = states_;
      args.fresh = view.step.first_position(seq) == 0;
      args.y_dtype = y_.dtype;
      args.a = -w_[head];
      args.dt_min = args.dt_max = 1.0f;
      args.x = row + int64_t{head} * width_;
      args.b = row + y_.cols + int64_t{head} * states_;
      args.c = args.b + int64_t{heads_} * states_;
      args.x_stride = row_.stride;
      args.dt = &kNoStep;
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
    return {tokens * (row_.row_bytes() + y_.row_bytes()) + view.step.seqs() * elements * 8,
            tokens * elements * 5};
  }

 private:
  BufferRef row_, y_;
  StateStorage& storage_;
  size_t state_;
  int32_t heads_, states_, width_;
  const float* w_;  // [heads]: the slopes
  tw_state_space_scan_fn kernel_;
};

}  // namespace

void check_carried_linear_attention(const InstructionCheck& c) {
  const int32_t heads = c.instruction.ints[1], states = c.instruction.ints[2];
  const uint64_t state_bytes = c.state().bytes, cols = c.out(0)->cols;
  c.require(heads >= 1 && heads <= c.kMaxHeads, "heads must be 1 to ", c.kMaxHeads, ", are ", heads);
  c.require(states >= 1 && states <= c.kMaxStates, "states must be 1 to ", c.kMaxStates, ", is ", states);
  const auto count = static_cast<uint64_t>(heads), each = static_cast<uint64_t>(states);
  c.require(cols >= 1 && cols % count == 0, "y must have a multiple of ", heads, " cols, has ", cols);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  c.require_float32("row", c.in(0));
  c.require_cols("row", c.in(0), cols + 2 * count * each);
  c.require_raw("w", c.weight(0), count);
  c.require(cols * each * 4 <= state_bytes, "the state must have ", cols * each * 4, " bytes, has ",
            state_bytes);
}

std::unique_ptr<Operation> make_carried_linear_attention(const Instruction& instruction,
                                                         const OpContext& context) {
  return std::make_unique<CarriedLinearAttention>(instruction, context);
}

}  // namespace tensorwright
