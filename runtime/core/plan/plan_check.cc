#include "runtime/core/plan/plan_check.h"

#include <algorithm>

#include "runtime/core/plan/instruction_check.h"

namespace tensorwright {
namespace {

using Check = InstructionCheck;

// Checks a row of operand indices: required ones must be present, optional ones present or -1, and the rest
// -1; all must be below `count`.
template <size_t N>
void check_operands(const Check& c, const char* what, const int32_t (&operands)[N], int required, int taken,
                    size_t count) {
  for (int i = 0; i < static_cast<int>(N); ++i) {
    const int32_t operand = operands[i];
    c.require(operand >= -1 && operand < static_cast<int64_t>(count), what, "[", i, "] must be -1 to ",
              static_cast<int64_t>(count) - 1, ", is ", operand);
    c.require(i >= required || operand >= 0, what, "[", i, "] is missing");
    c.require(i < taken || operand == -1, what, "[", i, "] must be absent (-1), is ", operand);
  }
}

void check_arity(const Check& c, const OpRow& row) {
  const Instruction& instruction = c.instruction;
  c.require(instruction.name < c.plan.names.size(), "name ", instruction.name,
            " lies outside the string table of ", c.plan.names.size(), " bytes");
  check_operands(c, "in", instruction.in, row.ins_required, row.ins, c.plan.buffers.size());
  check_operands(c, "out", instruction.out, row.outs_required, row.outs, c.plan.buffers.size());
  check_operands(c, "weight", instruction.weight, row.weights_required, row.weights, c.plan.weights.size());
  for (int i = row.ints; i < 8; ++i) c.require(instruction.ints[i] == 0, "ints[", i, "] must be 0");
  for (int i = row.floats; i < 4; ++i) c.require(instruction.floats[i] == 0, "floats[", i, "] must be 0");
}

// Buffers of whole numbers hold the experts that a route has chosen. No other instruction may touch them.
void check_whole_numbers(const Check& c) {
  const auto op = static_cast<Op>(c.instruction.op);
  for (int i = 0; i < 4; ++i) {
    const bool mixture = op == Op::kExperts || op == Op::kExpertsUp || op == Op::kExpertsDown;
    const bool taken = mixture && i == 1;
    c.require(taken || !c.in(i) || c.in(i)->dtype != TW_I32, "in[", i, "] must not be int32");
  }
  for (int i = 0; i < 2; ++i) {
    const bool given = (op == Op::kRoute || op == Op::kRouteByScore) && i == 0;
    c.require(given || !c.out(i) || c.out(i)->dtype != TW_I32, "out[", i, "] must not be int32");
  }
}

// Notes the kv layer that an instruction writes. Attention must read one that an earlier instruction writes:
// a page holds what another request left there until then.
void check_caches(const Check& c, std::vector<bool>& written) {
  const auto op = static_cast<Op>(c.instruction.op);
  const auto layer = static_cast<size_t>(c.instruction.ints[0]);
  if (op == Op::kPagedAttention)
    c.require(written[layer], "reads kv layer ", layer, " before anything writes it");
  // A rotary_kv_write of q alone writes nothing.
  if (op == Op::kLatentKvWrite || (op == Op::kRotaryKvWrite && c.in(0)->cols > c.out(0)->cols))
    written[layer] = true;
}

bool overlap(const BufferRecord& a, const BufferRecord& b) {
  return a.kind == b.kind && a.offset < b.offset + b.stride_bytes && b.offset < a.offset + a.stride_bytes;
}

bool same_place(const BufferRecord& a, const BufferRecord& b) {
  return a.kind == b.kind && a.offset == b.offset && a.stride_bytes == b.stride_bytes && a.dtype == b.dtype;
}

void check_overlaps(const Check& c) {
  for (int o = 0; o < 2; ++o) {
    if (!c.out(o)) continue;
    for (int i = 0; i < 4; ++i) {
      if (!c.in(i) || !overlap(*c.in(i), *c.out(o))) continue;
      c.require(may_share(c.instruction, i, o) && same_place(*c.in(i), *c.out(o)), "out[", o,
                "] may not share memory with in[", i, "]");
    }
  }
  c.require(!c.out(1) || !overlap(*c.out(0), *c.out(1)), "out[0] and out[1] share memory");
}

}  // namespace

const OpRow* find_op(uint32_t op) {
  for (const OpRow& row : kOpTable) {
    if (static_cast<uint32_t>(row.op) == op) return &row;
  }
  return nullptr;
}

bool may_share(const Instruction& instruction, int in, int out) {
  for (const OpSharing& sharing : kOpSharings) {
    if (static_cast<uint32_t>(sharing.op) != instruction.op) continue;
    const bool holds = sharing.without < 0 || instruction.in[sharing.without] < 0;
    if (holds && sharing.in == in && sharing.out == out) return true;
  }
  return false;
}

const char* op_name(uint32_t op) {
  const OpRow* row = find_op(op);
  return row ? row->name : nullptr;
}

namespace {

// Heads must be one, write their results, and have a cache of one group that they alone write. The model must
// write its logits before them: the buffers of a step of the model hold nothing in a step of heads.
void check_heads(const Plan& plan) {
  const Instruction* entry = plan.heads();
  if (!entry) return;
  const size_t begin = plan.model_instructions();
  const auto fault = [&](const std::string& what) { refuse_plan(concat("instruction ", begin, ": ", what)); };
  if (plan.logit_instructions() == 0) fault("the heads begin before the logits are written");
  std::vector<bool> written(plan.buffers.size(), false);
  std::vector<bool> own(plan.kv_layers.size(), false), models = own;
  int64_t group = -1;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const auto op = static_cast<Op>(instruction.op);
    if (names_kv_layer(instruction.op)) {
      const auto layer = static_cast<size_t>(instruction.ints[0]);
      (i < begin ? models : own)[layer] = true;
      if (i > begin) {
        if (group >= 0 && group != plan.kv_layers[layer].group) fault("the heads have several cache groups");
        group = plan.kv_layers[layer].group;
        if (plan.kv_layers[layer].window > 0) fault("the heads have a cache with a window");
      }
      if (models[layer] && own[layer]) fault(concat("the heads share kv layer ", layer, " with the model"));
    }
    if (i < begin) continue;
    if (i > begin && op == Op::kDraftFeatures) fault("there are heads behind the heads");
    for (int32_t in : instruction.in) {
      if (i > begin && in >= 0 && !written[static_cast<size_t>(in)])
        fault(concat("the heads read buffer ", in, " of the model"));
    }
    for (int32_t out : instruction.out) {
      if (out >= 0) written[static_cast<size_t>(out)] = true;
    }
  }
  for (int i = 0; i < 2; ++i) {
    if (!written[static_cast<size_t>(entry->ints[i])]) fault("the heads do not write their results");
  }
}

// All layers choose as many keys, or none does: the scheduler knows one number. What a window or a state
// holds of rows that chose, it could not tell from what others computed.
void check_sparse_prefill(const Plan& plan) {
  int64_t budget = -1;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (static_cast<Op>(instruction.op) != Op::kPagedAttention) continue;
    const int32_t own = sparse_prefill_of(instruction);
    if (budget >= 0 && budget != own)
      refuse_plan(concat("instruction ", i, ": sparse_prefill must be that of the first layer, ", budget,
                         ", is ", own));
    budget = own;
  }
  if (budget <= 0) return;
  const auto has_window = [](const KvLayerRecord& layer) { return layer.window > 0; };
  if (plan.heads() || plan.meets_ranks() || !plan.states.empty() ||
      std::ranges::any_of(plan.kv_layers, has_window))
    refuse_plan("sparse_prefill needs a plan without heads, ranks, states and windows");
}

// All layers of a group must forget the same blocks at the same positions, because they share block tables,
// and groups must not share scores. The sum of all shares of two intervals must fit 64 bits (kept_blocks.h).
void check_budgets(const Plan& plan) {
  constexpr int64_t kMaxShares = int64_t{1} << 30;
  const auto fault = [&](size_t i, const auto&... parts) {
    refuse_plan(concat("instruction ", i, ": ", parts...));
  };
  std::vector<const Instruction*> firsts(plan.header.cache_groups);
  int64_t shares = 0;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (instruction.op != static_cast<uint32_t>(Op::kPagedAttention)) continue;
    const BlockBudget budget = budget_of(instruction);
    const uint32_t group = plan.kv_layers[static_cast<size_t>(instruction.ints[0])].group;
    if (!firsts[group]) firsts[group] = &instruction;
    if (!std::equal(instruction.ints + kBudgetInts, instruction.ints + kBudgetEnd,
                    firsts[group]->ints + kBudgetInts))
      fault(i, "the budget must be that of the other layers of cache group ", group);
    if (budget.kept == 0) continue;
    if (plan.meets_ranks()) fault(i, "there must be no budget in the plan of one of several ranks");
    shares += int64_t{instruction.ints[1]} * budget.interval;
    if (shares > kMaxShares)
      fault(i, "heads times interval must be at most ", kMaxShares, " over all layers, is ", shares);
    for (size_t other = 0; other < firsts.size(); ++other) {
      if (other == group || !firsts[other] || budget_of(*firsts[other]).kept == 0) continue;
      const BlockBudget others = budget_of(*firsts[other]);
      if (others.state == budget.state || others.interval != budget.interval)
        fault(i, "cache groups ", other, " and ", group, " must have the same interval, and a state each");
    }
  }
}

}  // namespace

void check_instructions(const Plan& plan) {
  std::vector<bool> written(plan.buffers.size(), false), cached(plan.kv_layers.size(), false);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const OpRow* row = find_op(instruction.op);
    if (!row) refuse_plan(concat("instruction ", i, ": op ", instruction.op, " is unknown"));
    const Check check(plan, i, row->name);
    check_arity(check, *row);
    for (int32_t in : instruction.in) {
      check.require(in < 0 || written[static_cast<size_t>(in)], "reads buffer ", in,
                    " before anything writes it");
    }
    check_whole_numbers(check);
    row->check(check);
    check_caches(check, cached);
    check_overlaps(check);
    for (int32_t out : instruction.out) {
      if (out >= 0) written[static_cast<size_t>(out)] = true;
    }
  }
  check_heads(plan);
  check_budgets(plan);
  check_sparse_prefill(plan);
  const bool sends = std::ranges::any_of(plan.instructions, [](const Instruction& instruction) {
    return instruction.op == static_cast<uint32_t>(Op::kSend);
  });
  if (sends != (plan.header.logits_buffer < 0))
    refuse_plan("logits_buffer must be -1 if a stage sends to the next one, and else name the logits");
  if (sends) return;
  const auto logits = static_cast<size_t>(plan.header.logits_buffer);
  const BufferRecord& buffer = plan.buffers[logits];
  if (buffer.kind != static_cast<uint32_t>(BufferKind::kRows) || buffer.dtype != TW_F32 || !written[logits]) {
    refuse_plan(concat("logits_buffer ", logits, " must be written, of kind rows, float32"));
  }
  // Its columns are logits, or, if they are not as many as the tokens, a hidden state. Heads read logits.
  if (plan.heads() && buffer.cols != plan.header.vocab_size)
    refuse_plan(concat("logits_buffer ", logits, " must have ", plan.header.vocab_size,
                       " cols in a plan with heads"));
}

}  // namespace tensorwright
