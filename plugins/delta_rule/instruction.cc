// carried_delta_rule: delta_rule over each sequence of the step. A task is one value head of one sequence.
#include <cmath>

#include "plugins/common/exp.h"
#include "plugins/delta_rule/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

constexpr int32_t kMaxWidth = 1 << 20;

class CarriedDeltaRule : public Operation {
 public:
  CarriedDeltaRule(const Instruction& instruction, const OpContext& context)
      : row_(context.buffer(instruction.in[0])),
        dt_(context.buffer(instruction.in[1])),
        beta_(context.buffer(instruction.in[2])),
        y_(context.buffer(instruction.out[0])),
        storage_(context.states),
        state_(static_cast<size_t>(instruction.ints[0])),
        key_heads_(instruction.ints[1]),
        heads_(instruction.ints[2]),
        keys_((row_.cols - y_.cols) / (2 * key_heads_)),
        decays_(dt_.cols / heads_),
        width_(instruction.ints[3]),
        beta_scale_(instruction.floats[0]),
        w_(context.weight_floats(instruction.weight[0])),
        kernel_(choose("delta_rule", delta_rule_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    split_sequences(view, team, heads_, [&](int32_t seq, int32_t head) {
      const int32_t key_head = head / (heads_ / key_heads_);
      const int32_t* start = view.step.seq_starts.data() + seq;
      const float* row = row_.floats(view, start[0]);
      tw_delta_rule_args args{};
      args.tokens = start[1] - start[0];
      args.keys = keys_;
      args.width = width_;
      args.decays = decays_;
      args.fresh = view.step.first_position(seq) == 0;
      args.y_dtype = y_.dtype;
      args.a = -tw_exp(w_[head]);
      args.beta_scale = beta_scale_;
      args.q = row + int64_t{key_head} * keys_;
      args.k = args.q + int64_t{key_heads_} * keys_;
      args.v = row + int64_t{2} * key_heads_ * keys_ + int64_t{head} * width_;
      args.q_stride = row_.stride;
      args.dt = dt_.floats(view, start[0]) + int64_t{head} * decays_;
      args.dt_stride = dt_.stride;
      args.beta = beta_.floats(view, start[0]) + head;
      args.beta_stride = beta_.stride;
      const int32_t slot = view.step.state_slots[static_cast<size_t>(seq)];
      args.state = reinterpret_cast<float*>(storage_.at(state_, slot)) + int64_t{head} * keys_ * width_;
      args.y = y_.at(view, start[0]);
      args.y_begin = int64_t{head} * width_;
      args.y_stride = y_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t tokens = y_.rows(view), elements = int64_t{y_.cols} * keys_;
    return {tokens * (row_.row_bytes() + dt_.row_bytes() + beta_.row_bytes() + y_.row_bytes()) +
                view.step.seqs() * elements * 8,
            tokens * elements * 7};
  }

 private:
  BufferRef row_, dt_, beta_, y_;
  StateStorage& storage_;
  size_t state_;
  int32_t key_heads_, heads_, keys_, decays_, width_;
  float beta_scale_;
  const float* w_;  // [heads]: log(-a)
  tw_delta_rule_fn kernel_;
};

}  // namespace

void check_carried_delta_rule(const InstructionCheck& c) {
  const int32_t key_heads = c.instruction.ints[1], heads = c.instruction.ints[2];
  const uint64_t state_bytes = c.state().bytes, cols = c.out(0)->cols, row = c.in(0)->cols;
  c.require(key_heads >= 1 && heads >= key_heads && heads <= c.kMaxHeads && heads % key_heads == 0,
            "heads must be a multiple of key_heads up to ", c.kMaxHeads, ", are ", heads, " and ", key_heads);
  const auto count = static_cast<uint64_t>(heads);
  c.require(c.instruction.ints[3] >= 1 && c.instruction.ints[3] <= kMaxWidth, "width must be 1 to ",
            kMaxWidth, ", is ", c.instruction.ints[3]);
  c.require_cols("y", c.out(0), count * static_cast<uint64_t>(c.instruction.ints[3]));
  const uint64_t each = 2 * static_cast<uint64_t>(key_heads);
  const uint64_t keys = row > cols ? (row - cols) / each : 0;
  c.require(keys >= 1 && keys <= TW_DELTA_MAX_KEYS && keys * each + cols == row,
            "row must hold q and k of 1 to ", int{TW_DELTA_MAX_KEYS}, " elements beside v, has ", row,
            " cols");
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require(c.out(0)->dtype == TW_F32 || c.out(0)->dtype == TW_BF16, "y must be float32 or bfloat16");
  for (int i = 0; i < 3; ++i) c.require_float32("every input", c.in(i));
  c.require(c.in(1)->cols == count || c.in(1)->cols == count * keys, "dt must have ", count, " cols, or ",
            count * keys, ", has ", c.in(1)->cols);
  c.require_cols("beta", c.in(2), count);
  c.require_raw("w", c.weight(0), count);
  c.require_finite("beta_scale", c.instruction.floats[0]);
  c.require(cols * keys * 4 <= state_bytes, "the state must have ", cols * keys * 4, " bytes, has ",
            state_bytes);
}

std::unique_ptr<Operation> make_carried_delta_rule(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<CarriedDeltaRule>(instruction, context);
}

}  // namespace tensorwright
