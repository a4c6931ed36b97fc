// carried_selective_scan: selective_scan over each sequence of the step. A task is a range of channels of one
// sequence.
#include <algorithm>
#include <vector>

#include "plugins/common/exp.h"
#include "plugins/selective_scan/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int32_t kChannelsPerTask = 8 * TW_LANES;

uint64_t panels(uint64_t channels) { return (channels + TW_LANES - 1) / TW_LANES; }

// Returns a = -exp(a_log) in panels, for a_log: [states, channels].
std::vector<float> decays(const float* a_log, int32_t states, int32_t channels) {
  std::vector<float> a(panels(static_cast<uint64_t>(channels)) * static_cast<size_t>(states) * TW_LANES);
  for (int64_t i = 0; i < channels; ++i) {
    const int64_t first = i / TW_LANES * TW_LANES * states + i % TW_LANES;
    for (int64_t n = 0; n < states; ++n) {
      a[static_cast<size_t>(first + n * TW_LANES)] = -tw_exp(a_log[n * channels + i]);
    }
  }
  return a;
}

class CarriedSelectiveScan : public Operation {
 public:
  CarriedSelectiveScan(const Instruction& instruction, const OpContext& context)
      : x_(context.buffer(instruction.in[0])),
        dt_(context.buffer(instruction.in[1])),
        b_(context.buffer(instruction.in[2])),
        c_(context.buffer(instruction.in[3])),
        y_(context.buffer(instruction.out[0])),
        storage_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        states_(instruction.ints[1]),
        w_(context.weight_floats(instruction.weight[0])),
        a_(decays(w_, states_, y_.cols)),
        kernel_(choose("selective_scan", selective_scan_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    const int32_t parts = (y_.cols + kChannelsPerTask - 1) / kChannelsPerTask;
    split_sequences(view, team, parts, [&](int32_t seq, int32_t part) {
      const int32_t* start = view.step.seq_starts.data() + seq;
      tw_selective_scan_args args{};
      args.tokens = start[1] - start[0];
      args.channels = y_.cols;
      args.states = states_;
      args.begin = part * kChannelsPerTask;
      args.end = std::min(args.begin + kChannelsPerTask, y_.cols);
      args.fresh = view.step.first_position(seq) == 0;
      args.y_dtype = y_.dtype;
      args.x = x_.floats(view, start[0]);
      args.dt = dt_.floats(view, start[0]);
      args.b = b_.floats(view, start[0]);
      args.c = c_.floats(view, start[0]);
      args.x_stride = x_.stride;
      args.dt_stride = dt_.stride;
      args.b_stride = b_.stride;
      args.c_stride = c_.stride;
      args.a = a_.data();
      args.d = w_ + int64_t{states_} * y_.cols;
      args.dt_bias = args.d + y_.cols;
      const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
      args.state = reinterpret_cast<float*>(storage_.at(state_, slot));
      args.y = y_.at(view, start[0]);
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t tokens = y_.rows(view), elements = int64_t{y_.cols} * states_;
    const int64_t rows = x_.row_bytes() + dt_.row_bytes() + b_.row_bytes() + c_.row_bytes() + y_.row_bytes();
    return {tokens * rows + view.step.seqs() * elements * 8 + elements * 4, tokens * elements * 6};
  }

 private:
  BufferRef x_, dt_, b_, c_, y_;
  StateStorage& storage_;
  size_t state_;
  int32_t states_;
  const float* w_;        // [states + 2, channels]: log(-a), d, dt_bias
  std::vector<float> a_;  // panels
  tw_selective_scan_fn kernel_;
};

}  // namespace

void check_carried_selective_scan(const InstructionCheck& c) {
  const int32_t states = c.instruction.ints[1];
  const uint64_t cols = c.out(0)->cols, state_bytes = c.state().bytes;
  c.require(states >= 1 && states <= c.kMaxStates, "states must be 1 to ", c.kMaxStates, ", is ", states);
  c.require(cols >= 1, "y must have columns");
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  const char* names[] = {"x", "dt", "b", "c"};
  for (int i = 0; i < 4; ++i) {
    c.require_float32(names[i], c.in(i));
    c.require_cols(names[i], c.in(i), i < 2 ? cols : static_cast<uint64_t>(states));
  }
  c.require_raw("w", c.weight(0), (static_cast<uint64_t>(states) + 2) * cols);
  const uint64_t bytes = panels(cols) * TW_LANES * static_cast<uint64_t>(states) * 4;
  c.require(bytes <= state_bytes, "the state must have ", bytes, " bytes, has ", state_bytes);
}

std::unique_ptr<Operation> make_carried_selective_scan(const Instruction& instruction,
                                                       const OpContext& context) {
  return std::make_unique<CarriedSelectiveScan>(instruction, context);
}

}  // namespace tensorwright
