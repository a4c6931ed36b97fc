// rotary_table: cosines and sines of the step's positions.
// rotary_kv_write: rotates q and k of a joint qkv row if there is a table, keeps q, writes k and v into their
// pages. A row of q alone belongs to a layer that reads the pages of another one, and writes nothing.
#include "plugins/paged_attention/layout.h"
#include "plugins/rotary/kernels.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class RotaryTable : public Operation {
 public:
  RotaryTable(const Instruction& instruction, const OpContext& context)
      : table_(context.buffer(instruction.out[0])),
        inv_freq_(context.weight_floats(instruction.weight[0])),
        scale_(instruction.floats[0]),
        kernel_(choose("rotary_table", rotary_table_kernels(), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    constexpr int64_t kElementsPerCosine = 16;  // a cosine costs about as much as this many plain elements
    split_rows(team, table_.rows(view), table_.cols * kElementsPerCosine, [&](int32_t begin, int32_t end) {
      tw_rotary_table_args args{};
      args.tokens = end - begin;
      args.half = table_.cols / 2;
      args.positions = view.step.positions.data() + begin;
      args.inv_freq = inv_freq_;
      args.scale = scale_;
      args.table = table_.floats(view, begin);
      args.table_stride = table_.stride;
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = table_.rows(view);
    return {rows * table_.row_bytes(), rows * table_.cols * 20};
  }

 private:
  BufferRef table_;
  const float* inv_freq_;
  float scale_;
  tw_rotary_table_fn kernel_;
};

class RotaryKvWrite : public Operation {
 public:
  RotaryKvWrite(const Instruction& instruction, const OpContext& context)
      : qkv_(context.buffer(instruction.in[0])),
        q_(context.buffer(instruction.out[0])),
        kv_(context.kv),
        layer_index_(static_cast<size_t>(instruction.ints[0])),
        layer_(context.plan.kv_layers[layer_index_]),
        heads_(instruction.ints[1]),
        kv_heads_(qkv_.cols > q_.cols ? static_cast<int32_t>(layer_.kv_heads) : 0),
        rotary_dim_(instruction.ints[2]),
        block_size_(static_cast<int32_t>(context.plan.header.block_size)),
        kernel_(choose("rotary_kv_write", rotary_kv_write_kernels(), context.isa)) {
    if (rotary_dim_ > 0) table_ = context.buffer(instruction.in[1]);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const std::vector<int32_t>& slots = view.step.groups[layer_.group].slots;
    split_rows(team, q_.rows(view), qkv_.cols, [&](int32_t begin, int32_t end) {
      tw_rotary_kv_write_args args{};
      args.tokens = end - begin;
      args.heads = heads_;
      args.kv_heads = kv_heads_;
      args.head_dim = static_cast<int32_t>(layer_.head_dim);
      args.rotary_dim = rotary_dim_;
      args.block_size = block_size_;
      args.q_dtype = q_.dtype;
      args.kv_dtype = kv_dtype();
      args.qkv = qkv_.floats(view, begin);
      args.qkv_stride = qkv_.stride;
      if (rotary_dim_ > 0) args.table = table_.floats(view, begin);
      args.table_stride = table_.stride;
      args.slots = slots.data() + begin;
      args.q = q_.at(view, begin);
      args.q_stride = q_.stride;
      args.pages = kv_.pages(layer_index_);
      args.page_bytes = static_cast<int64_t>(kv_.block_bytes(layer_index_));
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = q_.rows(view);
    const int64_t kv_bytes = int64_t{2} * kv_heads_ * tw_kv_position_bytes(kv_dtype(), layer_.head_dim);
    const int64_t table_bytes = rotary_dim_ > 0 ? table_.row_bytes() : 0;
    return {rows * (qkv_.row_bytes() + table_bytes + q_.row_bytes() + kv_bytes), rows * qkv_.cols * 3};
  }

 private:
  int kv_dtype() const { return static_cast<int>(layer_.dtype); }

  BufferRef qkv_, q_, table_;
  KvStorage& kv_;
  size_t layer_index_;
  KvLayerRecord layer_;
  int32_t heads_, kv_heads_, rotary_dim_, block_size_;
  tw_rotary_kv_write_fn kernel_;
};

}  // namespace

// A table has a cosine and a sine for each frequency.
void check_rotary_table(const InstructionCheck& c) {
  const WeightRecord* inv_freq = c.weight(0);
  c.require_raw("inv_freq", inv_freq, inv_freq->k);
  c.require_kind("table", c.out(0), BufferKind::kTokens);
  c.require_float32("table", c.out(0));
  c.require_cols("table", c.out(0), uint64_t{2} * inv_freq->k);
  c.require_finite("scale", c.instruction.floats[0]);
}

void check_rotary_kv_write(const InstructionCheck& c) {
  const KvLayerRecord& layer = c.kv_layer();
  const uint64_t heads = c.heads(layer);
  const int32_t rotary_dim = c.instruction.ints[2];
  c.require(rotary_dim >= 0 && rotary_dim % 2 == 0 && static_cast<uint32_t>(rotary_dim) <= layer.head_dim,
            "rotary_dim must be even and 0 to ", layer.head_dim, ", is ", rotary_dim);
  c.require((rotary_dim == 0) == (c.in(1) == nullptr),
            "there must be a table exactly if rotary_dim is not 0");
  c.require_kind("q", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require_float32("qkv", c.in(0));
  const bool writes =
      c.in(0)->cols != heads * layer.head_dim;  // q alone belongs to a layer that writes nothing
  c.require(!writes || layer.v_dim == 0, "the kv layer must have rows of V of its own, has v_dim ",
            layer.v_dim);
  c.require_cols("qkv", c.in(0), (heads + (writes ? 2 * uint64_t{layer.kv_heads} : 0)) * layer.head_dim);
  c.require_float32("table", c.in(1));
  c.require_cols("table", c.in(1), static_cast<uint64_t>(rotary_dim));
  if (c.out(0)->dtype != TW_F32) c.require_q(c.out(0), layer);  // float32, if an elementwise reads it
  c.require_cols("q", c.out(0), heads * layer.head_dim);
}

std::unique_ptr<Operation> make_rotary_table(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RotaryTable>(instruction, context);
}

std::unique_ptr<Operation> make_rotary_kv_write(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<RotaryKvWrite>(instruction, context);
}

}  // namespace tensorwright
