// latent_kv_write: joins and rotates the rows of q, and writes the latent rows into their pages.
#include "plugins/latent_attention/kernels.h"
#include "plugins/paged_attention/layout.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class LatentKvWrite : public Operation {
 public:
  LatentKvWrite(const Instruction& instruction, const OpContext& context)
      : q_latent_(context.buffer(instruction.in[0])),
        q_(context.buffer(instruction.in[1])),
        rows_(context.buffer(instruction.in[2])),
        has_table_(instruction.in[3] >= 0),
        y_(context.buffer(instruction.out[0])),
        kv_(context.kv),
        layer_index_(static_cast<size_t>(instruction.ints[0])),
        layer_(context.plan.kv_layers[layer_index_]),
        heads_(instruction.ints[1]),
        block_size_(static_cast<int32_t>(context.plan.header.block_size)),
        kernel_(choose("latent_kv_write", latent_kv_write_kernels(), context.isa)) {
    if (has_table_) table_ = context.buffer(instruction.in[3]);
  }

  void run(const StepView& view, ThreadTeam& team) override {
    const std::vector<int32_t>& slots = view.step.groups[layer_.group].slots;
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      tw_latent_kv_write_args args{};
      args.tokens = end - begin;
      args.heads = heads_;
      args.latent = static_cast<int32_t>(layer_.v_dim);
      args.rope = static_cast<int32_t>(layer_.head_dim - layer_.v_dim);
      args.q_head = q_.cols / heads_;
      args.block_size = block_size_;
      args.y_dtype = y_.dtype;
      args.kv_dtype = static_cast<int32_t>(layer_.dtype);
      args.q_latent = q_latent_.floats(view, begin);
      args.q_latent_stride = q_latent_.stride;
      args.q = q_.floats(view, begin);
      args.q_stride = q_.stride;
      args.kv = rows_.floats(view, begin);
      args.kv_stride = rows_.stride;
      if (has_table_) args.table = table_.floats(view, begin);
      args.table_stride = table_.stride;
      args.slots = slots.data() + begin;
      args.y = y_.at(view, begin);
      args.y_stride = y_.stride;
      args.pages = kv_.pages(layer_index_);
      args.page_bytes = static_cast<int64_t>(kv_.block_bytes(layer_index_));
      kernel_(&args);
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t rows = y_.rows(view);
    const int64_t read =
        q_latent_.row_bytes() + q_.row_bytes() + rows_.row_bytes() + (has_table_ ? table_.row_bytes() : 0);
    const int64_t written =
        y_.row_bytes() + tw_kv_position_bytes(static_cast<int>(layer_.dtype), layer_.head_dim);
    return {rows * (read + written), rows * y_.cols * 3};
  }

 private:
  BufferRef q_latent_, q_, rows_;  // rows_: what becomes a row of the cache
  bool has_table_;
  BufferRef table_, y_;
  KvStorage& kv_;
  size_t layer_index_;
  KvLayerRecord layer_;
  int32_t heads_, block_size_;
  tw_latent_kv_write_fn kernel_;
};

}  // namespace

void check_latent_kv_write(const InstructionCheck& c) {
  const KvLayerRecord& layer = c.kv_layer();
  const uint64_t heads = c.heads(layer);
  c.require(layer.v_dim > 0, "the kv layer must hold latent rows (v_dim)");
  const uint64_t rope = layer.head_dim - layer.v_dim;
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require_float32("q_latent", c.in(0));
  c.require_cols("q_latent", c.in(0), heads * layer.v_dim);
  c.require_float32("q", c.in(1));
  c.require(c.in(1)->cols % heads == 0 && c.in(1)->cols / heads >= rope, "q must have ", heads, " heads of ",
            rope, " columns or more, has ", c.in(1)->cols, " cols");
  c.require_float32("kv", c.in(2));
  c.require_cols("kv", c.in(2), layer.head_dim);
  c.require_float32("table", c.in(3));
  c.require_cols("table", c.in(3), rope);
  c.require(c.in(3) == nullptr || rope > 0, "there must be no table where no column rotates");
  c.require_q(c.out(0), layer);
  c.require_cols("y", c.out(0), heads * layer.head_dim);
}

std::unique_ptr<Operation> make_latent_kv_write(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<LatentKvWrite>(instruction, context);
}

}  // namespace tensorwright
