// carried_rg_lru: rg_lru over each sequence of the step. A task is a range of channels of one sequence.
#include <algorithm>
#include <vector>

#include "plugins/common/softplus.h"
#include "plugins/rg_lru/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int32_t kGateChannelsPerTask = 8 * TW_LANES;

// Returns -8 softplus(p) of each channel.
std::vector<float> rates(const float* p, int32_t channels) {
  std::vector<float> rate(static_cast<size_t>(channels));
  for (size_t i = 0; i < rate.size(); ++i) rate[i] = -8.0f * tw_softplus(p[i]);
  return rate;
}

class CarriedRgLru : public Operation {
 public:
  CarriedRgLru(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        input_(context.buffer(instruction.in[1])),
        decay_(context.buffer(instruction.in[2])),
        y_(context.buffer(instruction.out[0])),
        storage_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        w_(context.weight_floats(instruction.weight[0])),
        rate_(rates(w_, y_.cols)),
        kernel_(choose("rg_lru", rg_lru_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t parts = (y_.cols + kGateChannelsPerTask - 1) / kGateChannelsPerTask;
    split_sequences(view, team, parts, [&](int32_t seq, int32_t part) {
      const int32_t* start = view.step.seq_starts.data() + seq;
      tw_rg_lru_args args{};
      args.tokens = start[1] - start[0];
      args.begin = part * kGateChannelsPerTask;
      args.end = std::min(args.begin + kGateChannelsPerTask, y_.cols);
      args.fresh = view.step.first_position(seq) == 0;
      args.y_dtype = y_.dtype;
      args.x = x_.floats(view, start[0]);
      args.input = input_.floats(view, start[0]);
      args.decay = decay_.floats(view, start[0]);
      args.x_stride = x_.stride;
      args.input_stride = input_.stride;
      args.decay_stride = decay_.stride;
      args.rate = rate_.data();
      args.input_bias = w_ + y_.cols;
      args.decay_bias = args.input_bias + y_.cols;
      const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
      args.state = reinterpret_cast<float*>(storage_.at(state_, slot));
      args.y = y_.at(view, start[0]);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t tokens = y_.rows(view), rows = x_.row_bytes() + input_.row_bytes() + decay_.row_bytes();
    return {tokens * (rows + y_.row_bytes()) + view.step.seqs() * int64_t{y_.cols} * 8,
            tokens * int64_t{y_.cols} * 60};
  }

 private:
  BufferRef x_, input_, decay_, y_;
  StateStorage& storage_;
  size_t state_;
  const float* w_;           // [3, channels]: p, and the biases of the gates of the input and the decay
  std::vector<float> rate_;  // [channels]
  tw_rg_lru_fn kernel_;
};

}  // namespace

void check_carried_rg_lru(const InstructionCheck& c) {
  const uint64_t cols = c.out(0)->cols, state_bytes = c.state().bytes;
  c.require(cols >= 1, "y must have columns");
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  const char* names[] = {"x", "input", "decay"};
  for (int i = 0; i < 3; ++i) {
    c.require_float32(names[i], c.in(i));
    c.require_cols(names[i], c.in(i), cols);
  }
  c.require_raw("w", c.weight(0), 3 * cols);
  c.require(cols * 4 <= state_bytes, "the state must have ", cols * 4, " bytes, has ", state_bytes);
}

std::unique_ptr<Operation> make_carried_rg_lru(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<CarriedRgLru>(instruction, context);
}

}  // namespace tensorwright
