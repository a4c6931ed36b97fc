// What an instruction of paged_attention must hold before a plan may run it.
#include "runtime/core/plan/instruction_check.h"

#include "plugins/paged_attention/instruction_choice.h"
#include "runtime/core/ops/kept_blocks.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {
namespace {

// Queries that choose need keys of their own KV head, and scores that do not depend on how far a key is.
// plan_check.cc has the rules for all layers together.
void check_choice(const InstructionCheck& c, const KvLayerRecord& layer) {
  const auto block = static_cast<int32_t>(c.plan.header.block_size);
  const int32_t budget = sparse_prefill_of(c.instruction);
  const int64_t least = int64_t{BlockChoice::kKept + 1} * block;
  if (budget == 0) return;
  c.require(
      budget >= least && budget % block == 0 && budget <= static_cast<int64_t>(c.plan.header.max_seq_len),
      "sparse_prefill must be 0 or a multiple of block_size ", block, " from ", least, " to max_seq_len ",
      c.plan.header.max_seq_len, ", is ", budget);
  c.require(layer.window == 0 && layer.v_dim == 0 && !c.weight(1),
            "sparse_prefill needs a kv layer without window and v_dim, and no slopes");
}

// A budget of 0 blocks is none, and the other fields are then 0 too.
void check_budget(const InstructionCheck& c, const KvLayerRecord& layer) {
  const BlockBudget budget = budget_of(c.instruction);
  if (budget.kept == 0) {
    for (int i = kBudgetInts + 1; i < kBudgetEnd; ++i)
      c.require(c.instruction.ints[i] == 0, "ints[", i, "] must be 0 without a budget");
    return;
  }
  const auto block_size = static_cast<int32_t>(c.plan.header.block_size);
  c.require(layer.window == 0, "a layer with a budget must have no window, has ", layer.window);
  c.require(budget.sinks >= 0 && budget.recent >= 1 && budget.kept > 0 &&
                int64_t{budget.sinks} + budget.recent < budget.kept && budget.kept <= c.plan.max_blocks(),
            "kept must be at most ", c.plan.max_blocks(),
            " blocks and more than sinks and recent, of which the last "
            "is positive, is ",
            budget.kept, " with ", budget.sinks, " and ", budget.recent);
  c.require(budget.interval >= 1 && budget.interval % block_size == 0, "interval must be a multiple of ",
            block_size, " positions, is ", budget.interval);
  const uint64_t bytes = kept_bytes(c.plan.max_blocks()), found = c.kept_state().bytes;
  c.require(found == bytes, "the state of scores must have ", bytes, " bytes, has ", found);
}

}  // namespace

// The window is that of the KvLayerRecord.
void check_paged_attention(const InstructionCheck& c) {
  const KvLayerRecord& layer = c.kv_layer();
  const uint64_t heads = c.heads(layer);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require_q(c.in(0), layer);
  c.require_cols("q", c.in(0), heads * layer.head_dim);
  c.require_cols("y", c.out(0), heads * (layer.v_dim > 0 ? layer.v_dim : layer.head_dim));
  c.require_raw("sinks", c.weight(0), heads);
  c.require_raw("slopes", c.weight(1), heads);
  c.require_finite("scale", c.instruction.floats[0]);
  c.require_finite("softcap", c.instruction.floats[1]);
  c.require(c.instruction.floats[1] >= 0, "softcap must not be negative, is ", c.instruction.floats[1]);
  check_budget(c, layer);
  check_choice(c, layer);
}

}  // namespace tensorwright
