// embedding: y[t, :] = scale * table[ids[t] - first, :], where ids are the step's tokens or positions. A rank
// of a parallel engine may have `rows` rows of the table of tokens, from `first` on: y is zeros for others.
#include <algorithm>
#include <cstring>

#include "plugins/embedding/kernels.h"
#include "plugins/matmul/pack.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

class Embedding : public Operation {
 public:
  Embedding(const Instruction& instruction, const OpContext& context)
      : y_(context.buffer(instruction.out[0])),
        table_(context.weight_data(instruction.weight[0])),
        table_dtype_(static_cast<int>(context.weight(instruction.weight[0]).dtype)),
        by_position_(instruction.ints[0] == TW_IDS_POSITIONS),
        first_(instruction.ints[1]),
        rows_(instruction.ints[2]),
        group_(static_cast<int32_t>(context.weight(instruction.weight[0]).group)),
        scale_(instruction.floats[0]),
        kernel_(choose("embedding", embedding_kernels(table_dtype_), context.isa)) {}

  void run(const StepView& view, ThreadTeam& team) override {
    const std::vector<int32_t>& ids = by_position_ ? view.step.positions : view.step.token_ids;
    split_rows(team, y_.rows(view), y_.cols, [&](int32_t begin, int32_t end) {
      if (rows_ == 0) {
        gather(ids.data() + begin, end - begin, y_.floats(view, begin));
        return;
      }
      for (int32_t row = begin; row < end; ++row) {
        const int32_t id = ids[static_cast<size_t>(row)] - first_;
        float* y = y_.floats(view, row);
        if (id >= 0 && id < rows_) {
          gather(&id, 1, y);
        } else {
          std::fill_n(y, y_.cols, 0.0f);
        }
      }
    });
  }

  Cost cost(const StepView& view) const override {
    const int64_t elements = int64_t{y_.rows(view)} * y_.cols;
    return {elements * static_cast<int64_t>(4 + tw_dtype_bytes(table_dtype_)), elements};
  }

 private:
  void gather(const int32_t* ids, int32_t tokens, float* y) const {
    tw_embedding_args args{};
    args.tokens = tokens;
    args.width = y_.cols;
    args.ids = ids;
    args.table = table_;
    args.scale = scale_;
    args.y = y;
    args.y_stride = y_.stride;
    args.group = group_;
    kernel_(&args);
  }

  BufferRef y_;
  const void* table_;
  int table_dtype_;
  bool by_position_;
  int32_t first_, rows_;  // 0 rows: the table is whole
  int32_t group_;
  float scale_;
  tw_embedding_fn kernel_;
};

}  // namespace

// ids is a tw_embedding_ids.
void check_embedding(const InstructionCheck& c) {
  const WeightRecord* table = c.weight(0);
  const int32_t ids = c.instruction.ints[0];
  c.require(ids == TW_IDS_TOKENS || ids == TW_IDS_POSITIONS, "ids must be 0 or 1, is ", ids);
  const int32_t first = c.instruction.ints[1], rows = c.instruction.ints[2];
  const auto all = static_cast<int64_t>(c.plan.header.vocab_size);
  c.require(first >= 0 && rows >= 0 && int64_t{first} + rows <= all, "the rows from ", first, " on must be ",
            all, " at most, are ", rows);
  c.require(rows > 0 ? ids == TW_IDS_TOKENS : first == 0,
            "only a table of tokens has a part, of 1 row or more");
  const auto tokens = rows > 0 ? static_cast<uint32_t>(rows) : c.plan.header.vocab_size;
  const uint64_t panels =
      static_cast<uint64_t>(ids == TW_IDS_TOKENS ? panels_of(tokens) : table->n / TW_LANES);
  if (is_quantized(*table)) {
    c.require_quantized("table", table, panels, table->k);
  } else {
    c.require_panels("table", table, panels, table->k);
  }
  if (ids == TW_IDS_POSITIONS) {
    c.require(table->n >= c.plan.header.max_seq_len, "table must have a row for each of ",
              c.plan.header.max_seq_len, " positions, has ", table->n);
  }
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_float32("y", c.out(0));
  c.require_cols("y", c.out(0), table->k);
  c.require_finite("scale", c.instruction.floats[0]);
}

std::unique_ptr<Operation> make_embedding(const Instruction& instruction, const OpContext& context) {
  return std::make_unique<Embedding>(instruction, context);
}

}  // namespace tensorwright
