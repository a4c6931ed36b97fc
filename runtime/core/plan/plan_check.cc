#include "runtime/core/plan/plan_check.h"

#include "plugins/embedding/kernel.h"
#include "plugins/matmul/kernel.h"
#include "plugins/quantized_matmul/layout.h"
#include "runtime/core/plan/instruction_check.h"
#include "runtime/core/plan/program_check.h"

namespace tensorwright {
namespace {

using Check = InstructionCheck;

uint64_t ceil_panels(uint64_t rows) { return (rows + TW_LANES - 1) / TW_LANES; }

void check_embedding(const Check& c) {
  const WeightRecord* table = c.weight(0);
  const int32_t ids = c.instruction.ints[0];
  c.require(ids == TW_IDS_TOKENS || ids == TW_IDS_POSITIONS, "ids must be 0 or 1, is ", ids);
  const uint64_t panels =
      ids == TW_IDS_TOKENS ? ceil_panels(c.plan.header.vocab_size) : uint64_t{table->n / TW_LANES};
  if (table->layout == static_cast<uint32_t>(WeightLayout::kQuantized)) {
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

// What norms share, with or without a residual that is added first.
void check_norm(const Check& c) {
  const BufferRecord *x = c.in(0), *residual = c.in(1), *sum = c.out(1);
  c.require_same_kind();
  c.require((residual == nullptr) == (sum == nullptr), "residual and sum must come together");
  c.require_float32("x", x);
  c.require_float32("residual", residual);
  c.require_float32("sum", sum);
  c.require_cols("residual", residual, x->cols);
  c.require_cols("y", c.out(0), x->cols);
  c.require_cols("sum", sum, x->cols);
  c.require_norm_floats();
}

void check_rms_norm(const Check& c) {
  check_norm(c);
  c.require_raw("w", c.weight(0), c.in(0)->cols);
}

void check_rms_norm_columns(const Check& c) {
  const BufferRecord* x = c.in(0);
  const uint64_t width = c.weight(0)->k;
  c.require_same_kind();
  c.require_float32("x", x);
  c.require_float32("y", c.out(0));
  c.require_cols("y", c.out(0), x->cols);
  c.require_raw("w", c.weight(0), width);
  c.require_runs(c.instruction.ints[0], c.instruction.ints[1], width, x->cols);
  c.require_norm_floats();
}

void check_layer_norm(const Check& c) {
  const int32_t start = c.instruction.ints[0], heads = c.instruction.ints[1], width = c.instruction.ints[2];
  check_norm(c);
  c.require_runs(start, heads, width, c.in(0)->cols);
  const bool whole = static_cast<uint32_t>(width) == c.in(0)->cols;
  c.require(whole || !c.in(1), "only whole rows may have a residual");
  if (!whole) c.require_float32("y", c.out(0));
  const bool shared = c.weight(0)->k == static_cast<uint32_t>(width);
  c.require_raw("w", c.weight(0), static_cast<uint64_t>(shared ? width : heads * width));
  c.require_raw("b", c.weight(1), c.weight(0)->k);
}

// What float and quantized matmuls have in common; returns the panels of w.
uint64_t check_product(const Check& c) {
  const int32_t epilogue = c.instruction.ints[0], n = c.instruction.ints[1];
  c.require_same_kind();
  c.require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "epilogue must be 0 to ", int{TW_EPILOGUE_LAST},
            ", is ", epilogue);
  c.require(n >= 1, "n must be positive, is ", n);
  const uint64_t columns = ceil_panels(static_cast<uint64_t>(n));
  const uint64_t panels = columns * static_cast<uint64_t>(tw_epilogue_panels(epilogue));
  c.require_raw("bias", c.weight(1), panels * TW_LANES);
  c.require_float32("residual", c.in(1));
  c.require_cols("residual", c.in(1), static_cast<uint64_t>(n));
  c.require_cols("y", c.out(0), static_cast<uint64_t>(n));
  return panels;
}

void check_matmul(const Check& c) {
  const BufferRecord* x = c.in(0);
  const WeightRecord* w = c.weight(0);
  c.require_panels("w", w, check_product(c), x->cols);
  c.require(w->dtype == x->dtype, "w must have x's dtype ", x->dtype, ", has ", w->dtype);
}

void check_quantized_matmul(const Check& c) {
  const WeightRecord* w = c.weight(0);
  c.require_quantized("w", w, check_product(c), c.in(0)->cols);
  c.require(w->group != 0 || w->k <= TW_MOST_WHOLE_ROW, "w of whole rows must have at most ",
            int{TW_MOST_WHOLE_ROW}, " columns, has ", w->k);
}

void check_rotary_table(const Check& c) {
  const WeightRecord* inv_freq = c.weight(0);
  c.require_raw("inv_freq", inv_freq, inv_freq->k);
  c.require_kind("table", c.out(0), BufferKind::kTokens);
  c.require_float32("table", c.out(0));
  c.require_cols("table", c.out(0), uint64_t{2} * inv_freq->k);
  c.require_finite("scale", c.instruction.floats[0]);
}

void check_rotary_kv_write(const Check& c) {
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
  c.require_cols("qkv", c.in(0), (heads + 2 * uint64_t{layer.kv_heads}) * layer.head_dim);
  c.require_float32("table", c.in(1));
  c.require_cols("table", c.in(1), static_cast<uint64_t>(rotary_dim));
  c.require_q(c.out(0), layer);
  c.require_cols("q", c.out(0), heads * layer.head_dim);
}

void check_paged_attention(const Check& c) {
  const KvLayerRecord& layer = c.kv_layer();
  const uint64_t heads = c.heads(layer);
  c.require_kind("y", c.out(0), BufferKind::kTokens);
  c.require_same_kind();
  c.require_q(c.in(0), layer);
  c.require_cols("q", c.in(0), heads * layer.head_dim);
  c.require_cols("y", c.out(0), heads * layer.head_dim);
  c.require_raw("sinks", c.weight(0), heads);
  c.require_finite("scale", c.instruction.floats[0]);
  c.require_finite("softcap", c.instruction.floats[1]);
  c.require(c.instruction.floats[1] >= 0, "softcap must not be negative, is ", c.instruction.floats[1]);
}

void check_gather_rows(const Check& c) {
  c.require_kind("x", c.in(0), BufferKind::kTokens);
  c.require_kind("y", c.out(0), BufferKind::kRows);
  c.require(c.in(0)->dtype == c.out(0)->dtype, "y must have x's dtype ", c.in(0)->dtype, ", has ",
            c.out(0)->dtype);
  c.require_cols("y", c.out(0), c.in(0)->cols);
}

void check_swiglu(const Check& c) {
  const int32_t activation = c.instruction.ints[0];
  c.require(activation >= 0 && activation < TW_ACTIVATIONS, "activation must be below ", int{TW_ACTIVATIONS},
            ", is ", activation);
  c.require_same_kind();
  c.require_float32("x", c.in(0));
  c.require_cols("x", c.in(0), uint64_t{2} * c.out(0)->cols);
}

void check_add(const Check& c) {
  c.require_same_kind();
  c.require_float32("a", c.in(0));
  c.require_float32("b", c.in(1));
  c.require_float32("y", c.out(0));
  c.require_cols("a", c.in(0), c.out(0)->cols);
  c.require_cols("b", c.in(1), c.out(0)->cols);
}

void check_elementwise(const Check& c) {
  c.require_same_kind();
  for (int i = 0; i < TW_EW_INPUTS; ++i) {
    c.require_float32("every input", c.in(i));
    c.require_cols("every input", c.in(i), c.out(0)->cols);
    c.require(i == 0 || !c.in(i) || c.in(i - 1), "in[", i, "] needs in[", i - 1, "]");
    c.require_finite("every constant", c.instruction.floats[i]);
  }
  c.require_raw("w", c.weight(0), c.out(0)->cols);
  check_program(c);
}

// How many operands an op takes ("required" come first) and attributes it reads.
struct Rule {
  Op op;
  const char* name;
  int ins_required, ins, weights_required, weights, outs_required, outs, ints, floats;
  void (*check)(const Check&);
};

constexpr Rule kRules[] = {
    {Op::kEmbedding, "embedding", 0, 0, 1, 1, 1, 1, 1, 1, check_embedding},
    {Op::kRmsNorm, "rms_norm", 1, 2, 1, 1, 1, 2, 0, 2, check_rms_norm},
    {Op::kMatmul, "matmul", 1, 2, 1, 2, 1, 1, 2, 0, check_matmul},
    {Op::kQuantizedMatmul, "quantized_matmul", 1, 2, 1, 2, 1, 1, 2, 0, check_quantized_matmul},
    {Op::kRotaryTable, "rotary_table", 0, 0, 1, 1, 1, 1, 0, 1, check_rotary_table},
    {Op::kRotaryKvWrite, "rotary_kv_write", 1, 2, 0, 0, 1, 1, 3, 0, check_rotary_kv_write},
    {Op::kPagedAttention, "paged_attention", 1, 1, 0, 1, 1, 1, 2, 2, check_paged_attention},
    {Op::kGatherRows, "gather_rows", 1, 1, 0, 0, 1, 1, 0, 0, check_gather_rows},
    {Op::kSwiglu, "swiglu", 1, 1, 0, 0, 1, 1, 1, 0, check_swiglu},
    {Op::kAdd, "add", 2, 2, 0, 0, 1, 1, 0, 0, check_add},
    {Op::kRmsNormColumns, "rms_norm_columns", 1, 1, 1, 1, 1, 1, 2, 2, check_rms_norm_columns},
    {Op::kElementwise, "elementwise", 1, 4, 0, 1, 1, 1, 8, 4, check_elementwise},
    {Op::kLayerNorm, "layer_norm", 1, 2, 1, 2, 1, 2, 3, 2, check_layer_norm},
};

const Rule* find_rule(uint32_t op) {
  for (const Rule& rule : kRules)
    if (static_cast<uint32_t>(rule.op) == op) return &rule;
  return nullptr;
}

// A row of operand indices: the required ones present, the optional ones present or -1, the rest -1; all
// below `count`.
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

void check_arity(const Check& c, const Rule& rule) {
  const Instruction& instruction = c.instruction;
  c.require(instruction.name < c.plan.names.size(), "name ", instruction.name,
            " lies outside the string table of ", c.plan.names.size(), " bytes");
  check_operands(c, "in", instruction.in, rule.ins_required, rule.ins, c.plan.buffers.size());
  check_operands(c, "out", instruction.out, rule.outs_required, rule.outs, c.plan.buffers.size());
  check_operands(c, "weight", instruction.weight, rule.weights_required, rule.weights, c.plan.weights.size());
  for (int i = rule.ints; i < 8; ++i) c.require(instruction.ints[i] == 0, "ints[", i, "] must be 0");
  for (int i = rule.floats; i < 4; ++i) c.require(instruction.floats[i] == 0, "floats[", i, "] must be 0");
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

// Kernels read and write these element by element in one order, so they may work in place.
bool may_share(const Instruction& instruction, int in, int out) {
  const uint32_t op = instruction.op;
  return op == static_cast<uint32_t>(Op::kAdd) || op == static_cast<uint32_t>(Op::kRmsNormColumns) ||
         op == static_cast<uint32_t>(Op::kElementwise) ||
         (op == static_cast<uint32_t>(Op::kRmsNorm) && out == 1) ||
         (op == static_cast<uint32_t>(Op::kLayerNorm) && (out == 1 || instruction.in[1] < 0)) ||
         ((op == static_cast<uint32_t>(Op::kMatmul) || op == static_cast<uint32_t>(Op::kQuantizedMatmul)) &&
          in == 1);
}

std::vector<OpArity> op_arities() {
  std::vector<OpArity> arities;
  for (const Rule& r : kRules) {
    arities.push_back({static_cast<uint32_t>(r.op), r.name, r.ins_required, r.ins, r.weights_required,
                       r.weights, r.outs_required, r.outs, r.ints, r.floats});
  }
  return arities;
}

const char* op_name(uint32_t op) {
  const Rule* rule = find_rule(op);
  return rule ? rule->name : nullptr;
}

void check_instructions(const Plan& plan) {
  std::vector<bool> written(plan.buffers.size(), false);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const Rule* rule = find_rule(instruction.op);
    if (!rule) refuse_plan(concat("instruction ", i, ": op ", instruction.op, " is unknown"));
    const Check check(plan, i, rule->name);
    check_arity(check, *rule);
    for (int32_t in : instruction.in) {
      check.require(in < 0 || written[static_cast<size_t>(in)], "reads buffer ", in,
                    " before anything writes it");
    }
    rule->check(check);
    check_overlaps(check);
    for (int32_t out : instruction.out) {
      if (out >= 0) written[static_cast<size_t>(out)] = true;
    }
  }
  const auto logits = static_cast<size_t>(plan.header.logits_buffer);
  const BufferRecord& buffer = plan.buffers[logits];
  if (buffer.kind != static_cast<uint32_t>(BufferKind::kRows) || buffer.dtype != TW_F32 ||
      buffer.cols != plan.header.vocab_size || !written[logits]) {
    refuse_plan(concat("logits_buffer ", logits, " must be written, of kind rows, float32, with ",
                       plan.header.vocab_size, " cols"));
  }
}

}  // namespace tensorwright
