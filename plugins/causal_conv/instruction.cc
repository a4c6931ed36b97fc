// carried_conv: causal_conv over each sequence of the step. A task is a range of channels of one sequence.
#include <algorithm>

#include "plugins/causal_conv/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int32_t kConvChannelsPerTask = 256;

class CarriedConv : public Operation {
 public:
  CarriedConv(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        y_(context.buffer(instruction.out[0])),
        states_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        activation_(instruction.ints[1]),
        width_(static_cast<int32_t>(context.weight(instruction.weight[0]).k) / x_.cols),
        w_(context.weight_floats(instruction.weight[0])),
        bias_(context.weight_floats(instruction.weight[1])),
        kernel_(choose("causal_conv", causal_conv_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t parts = (x_.cols + kConvChannelsPerTask - 1) / kConvChannelsPerTask;
    split_sequences(view, team, parts, [&](int32_t seq, int32_t part) {
      const int32_t begin = part * kConvChannelsPerTask;
      const int32_t* start = view.step.seq_starts.data() + seq;
      tw_causal_conv_args args{};
      args.tokens = start[1] - start[0];
      args.width = width_;
      args.channels = x_.cols;
      args.begin = begin;
      args.end = std::min(begin + kConvChannelsPerTask, x_.cols);
      args.fresh = view.step.first_position(seq) == 0;
      args.activation = activation_;
      args.y_dtype = y_.dtype;
      args.x = x_.floats(view, start[0]);
      args.x_stride = x_.stride;
      args.w = w_;
      args.bias = bias_;
      const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
      args.state = reinterpret_cast<float*>(states_.at(state_, slot));
      args.y = y_.at(view, start[0]);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t tokens = x_.rows(view), cols = x_.cols;
    const int64_t state = int64_t{view.step.seqs()} * (width_ - 1) * cols * 4;
    return {tokens * (x_.row_bytes() + y_.row_bytes()) + 2 * state + int64_t{width_} * cols * 4,
            tokens * cols * 2 * width_};
  }

 private:
  BufferRef x_, y_;
  StateStorage& states_;
  size_t state_;
  int32_t activation_, width_;
  const float* w_;     // [width, cols]
  const float* bias_;  // [cols], or null
  tw_causal_conv_fn kernel_;
};

}  // namespace

void check_carried_conv(const InstructionCheck& c) {
  const uint64_t cols = c.in(0)->cols, state_bytes = c.state().bytes;
  const WeightRecord* w = c.weight(0);
  c.require(c.instruction.ints[1] >= 0 && c.instruction.ints[1] < TW_CONV_ACTIVATIONS,
            "activation must be below ", int{TW_CONV_ACTIVATIONS}, ", is ", c.instruction.ints[1]);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_cols("y", c.out(0), cols);
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  const uint64_t width = cols == 0 ? 0 : w->k / cols;
  c.require(width >= 1 && width <= TW_CONV_MAX_WIDTH, "w must have 1 to ", int{TW_CONV_MAX_WIDTH},
            " rows of ", cols, ", has ", w->k, " elements");
  c.require_raw("w", w, width * cols);
  c.require_raw("bias", c.weight(1), cols);
  c.require((width - 1) * cols * 4 <= state_bytes, "the state must have ", (width - 1) * cols * 4,
            " bytes, has ", state_bytes);
}

std::unique_ptr<Operation> make_carried_conv(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<CarriedConv>(instruction, context);
}

}  // namespace tensorwright
