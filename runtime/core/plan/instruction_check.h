// Checks one instruction of a plan: looks up its operands, and refuses the plan with an error that names the
// instruction.
#ifndef TENSORWRIGHT_RUNTIME_CORE_INSTRUCTION_CHECK_H_
#define TENSORWRIGHT_RUNTIME_CORE_INSTRUCTION_CHECK_H_

#include <cmath>

#include "plugins/common/kernel_types.h"
#include "plugins/paged_attention/layout.h"
#include "plugins/quantized_matmul/layout.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/plan/plan_check.h"

namespace tensorwright {

// One instruction and its operands.
class InstructionCheck {
 public:
  static constexpr int32_t kMaxHeads = 1 << 20;
  static constexpr int32_t kMaxStates = 1 << 20;

  InstructionCheck(const Plan& plan, size_t index, const char* op)
      : plan(plan), instruction(plan.instructions[index]), index_(index), op_(op) {}

  template <typename... Parts>
  void require(bool holds, const Parts&... fault) const {
    if (!holds) refuse_plan(concat("instruction ", index_, " (", op_, "): ", fault...));
  }

  const BufferRecord* in(int i) const { return find(instruction.in[i]); }
  const BufferRecord* out(int i) const { return find(instruction.out[i]); }
  const WeightRecord* weight(int i) const {
    return instruction.weight[i] < 0 ? nullptr : &plan.weights[static_cast<size_t>(instruction.weight[i])];
  }

  void require_float32(const char* what, const BufferRecord* buffer) const {
    require(!buffer || buffer->dtype == TW_F32, what, " must be float32, has dtype ",
            buffer ? buffer->dtype : 0);
  }
  void require_cols(const char* what, const BufferRecord* buffer, uint64_t cols) const {
    require(!buffer || buffer->cols == cols, what, " must have ", cols, " cols, has ",
            buffer ? buffer->cols : 0);
  }
  void require_kind(const char* what, const BufferRecord* buffer, BufferKind kind) const {
    require(!buffer || buffer->kind == static_cast<uint32_t>(kind), what, " must be of kind ",
            static_cast<uint32_t>(kind), ", is of kind ", buffer ? buffer->kind : 0);
  }
  void require_raw(const char* what, const WeightRecord* w, uint64_t length) const {
    const bool raw = !w || w->layout == static_cast<uint32_t>(WeightLayout::kRaw);
    require(raw && (!w || (w->n == 1 && w->k == length)), what, " must be a raw vector of ", length,
            ", is layout ", w ? w->layout : 0, " of ", w ? w->n : 0, " x ", w ? w->k : 0);
  }
  void require_panels(const char* what, const WeightRecord* w, uint64_t panels, uint64_t k) const {
    const bool fits = w->n == panels * TW_LANES && w->k == k;
    require(fits && w->layout == static_cast<uint32_t>(WeightLayout::kPanels), what, " must be panels of ",
            panels * TW_LANES, " x ", k, ", is layout ", w->layout, " of ", w->n, " x ", w->k);
  }
  void require_quantized(const char* what, const WeightRecord* w, uint64_t panels, uint64_t k) const {
    const bool fits = w->n == panels * TW_LANES && w->k == k;
    require(fits && is_quantized(*w), what, " must be quantized panels of ", panels * TW_LANES, " x ", k,
            ", is layout ", w->layout, " of ", w->n, " x ", w->k);
  }
  // Refuses a quantized matrix whose sums of whole numbers may not fit in 32 bits.
  void require_sums(const char* what, const WeightRecord* w) const {
    const bool whole = tw_sums_whole_rows(static_cast<int>(w->dtype), w->group);
    require(keeps_activations(*w) || !whole || w->k <= TW_MAX_WHOLE_ROW, what,
            " of whole rows must have at most ", int{TW_MAX_WHOLE_ROW}, " columns, has ", w->k);
  }
  void require_same_kind() const {
    const auto kind = static_cast<BufferKind>(out(0)->kind);
    for (int i = 0; i < 4; ++i) require_kind("every input", in(i), kind);
    require_kind("every output", out(1), kind);
  }
  const KvLayerRecord& kv_layer() const {
    const int32_t layer = instruction.ints[0];
    require(layer >= 0 && static_cast<size_t>(layer) < plan.kv_layers.size(), "kv_layer must be below ",
            plan.kv_layers.size(), ", is ", layer);
    return plan.kv_layers[static_cast<size_t>(layer)];
  }
  // Returns the record of the state that ints[`at`], the attribute `state` of the op, names.
  const StateRecord& state(int at = 0) const {
    const int32_t index = instruction.ints[at];
    require(index >= 0 && static_cast<size_t>(index) < plan.states.size(), "state must be below ",
            plan.states.size(), ", is ", index);
    return plan.states[static_cast<size_t>(index)];
  }
  // Returns the record of the state that the attribute `scores` of a budget names: the number of a state
  // and 1.
  const StateRecord& kept_state() const {
    const int32_t scores = scores_of(instruction);
    require(scores >= 1 && static_cast<size_t>(scores) <= plan.states.size(), "scores must be 1 to ",
            plan.states.size(), ", is ", scores);
    return plan.states[static_cast<size_t>(scores) - 1];
  }
  // q must have the cache's dtype, or with a cache of integers the dtype of activations.
  void require_q(const BufferRecord* q, const KvLayerRecord& layer) const {
    const bool quantized = tw_kv_is_quantized(layer.dtype);
    const uint32_t wanted = quantized ? plan.header.act_dtype : layer.dtype;
    require(q->dtype == wanted, "q must have ", quantized ? "act_dtype " : "the kv layer's dtype ", wanted,
            ", has ", q->dtype);
  }

  // Returns the heads attribute, in uint64 so that products with it cannot overflow.
  uint64_t heads(const KvLayerRecord& layer) const {
    const int32_t heads = instruction.ints[1];
    require(heads >= 1 && heads <= kMaxHeads && static_cast<uint32_t>(heads) % layer.kv_heads == 0,
            "heads must be a positive multiple of the layer's ", layer.kv_heads, " kv_heads, is ", heads);
    return static_cast<uint64_t>(heads);
  }
  // Requires that `heads` runs of `width` columns, from column `start` on, lie inside a row of `cols`
  // columns.
  void require_runs(int32_t start, int32_t heads, int64_t width, uint64_t cols) const {
    require(start >= 0, "start must not be negative, is ", start);
    require(heads >= 1, "heads must be positive, is ", heads);
    require(width >= 0, "width must not be negative, is ", width);
    const uint64_t end =
        static_cast<uint64_t>(start) + static_cast<uint64_t>(heads) * static_cast<uint64_t>(width);
    require(end <= cols, "heads must end by column ", cols, ", they end at ", end);
  }
  void require_finite(const char* what, float x) const { require(std::isfinite(x), what, " is not finite"); }

  const Plan& plan;
  const Instruction& instruction;

 private:
  const BufferRecord* find(int32_t i) const {
    return i < 0 ? nullptr : &plan.buffers[static_cast<size_t>(i)];
  }

  size_t index_;
  const char* op_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_INSTRUCTION_CHECK_H_
