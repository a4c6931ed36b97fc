// Reads the tables of plan.bin and checks each record on its own; plan_check.cc checks the instructions.
#include "runtime/core/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "plugins/paged_attention/kernel.h"
#include "plugins/quantized_matmul/layout.h"
#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/first_seen.h"
#include "runtime/core/plan/plan_check.h"

namespace tensorwright {

void refuse_plan(const std::string& fault) {
  throw Error("EngineError", concat("plan.bin: ", fault, "; rebuild the engine with build-engine"));
}

size_t Plan::kv_block_bytes(const KvLayerRecord& layer) const {
  const int dtype = static_cast<int>(layer.dtype), head_dim = static_cast<int>(layer.head_dim),
            block_size = static_cast<int>(header.block_size);
  if (layer.v_dim > 0) return tw_kv_k_bytes(dtype, head_dim, block_size);
  return tw_kv_block_bytes(dtype, static_cast<int>(layer.kv_heads), head_dim, block_size);
}

size_t Plan::model_instructions() const {
  const auto is_draft = [](const Instruction& i) {
    return i.op == static_cast<uint32_t>(Op::kDraftFeatures);
  };
  return static_cast<size_t>(std::ranges::find_if(instructions, is_draft) - instructions.begin());
}

const Instruction* Plan::heads() const {
  const size_t at = model_instructions();
  return at < instructions.size() ? &instructions[at] : nullptr;
}

bool Plan::meets_ranks() const {
  return std::ranges::any_of(instructions, [](const Instruction& instruction) {
    switch (static_cast<Op>(instruction.op)) {
      case Op::kAllReduce:
      case Op::kAllGather:
      case Op::kSend:
      case Op::kReceive:
        return true;
      default:
        return false;
    }
  });
}

size_t Plan::logit_instructions() const {
  size_t end = model_instructions();
  if (!heads()) return end;
  while (end > 0 && std::ranges::find(instructions[end - 1].out, header.logits_buffer) ==
                        std::end(instructions[end - 1].out))
    --end;
  return end;
}

const char* Plan::arithmetic(const Instruction& instruction) const {
  const auto act_dtype = [this] { return header.act_dtype == TW_BF16 ? "bfloat16" : "float32"; };
  if (instruction.op == static_cast<uint32_t>(Op::kPagedAttention)) return act_dtype();
  // A table of embeddings is looked up in, not multiplied by.
  if (instruction.op == static_cast<uint32_t>(Op::kEmbedding)) return "float32";
  for (const int32_t index : instruction.weight) {
    if (index < 0) continue;
    switch (static_cast<WeightLayout>(weights[static_cast<size_t>(index)].layout)) {
      case WeightLayout::kQuantized:
        return "int8";
      case WeightLayout::kPanels:
      case WeightLayout::kWeightOnly:
        return act_dtype();
      case WeightLayout::kRaw:
        break;
    }
  }
  return "float32";
}

bool names_kv_layer(uint32_t op) {
  switch (static_cast<Op>(op)) {
    case Op::kPagedAttention:
    case Op::kRotaryKvWrite:
    case Op::kLatentKvWrite:
      return true;
    default:
      return false;
  }
}

BlockBudget budget_of(const Instruction& instruction) {
  const int32_t* ints = instruction.ints + kBudgetInts;
  return {ints[0], ints[1], ints[2], ints[3], std::max(scores_of(instruction), 0) - 1};
}

std::vector<BlockBudget> Plan::budgets() const {
  std::vector<BlockBudget> budgets;
  for (const Instruction& instruction : instructions) {
    if (instruction.op != static_cast<uint32_t>(Op::kPagedAttention)) continue;
    const BlockBudget budget = budget_of(instruction);
    if (budget.kept == 0) continue;
    budgets.resize(header.cache_groups);
    budgets[kv_layers[static_cast<size_t>(instruction.ints[0])].group] = budget;
  }
  return budgets;
}

ModelFacts Plan::facts() const {
  ModelFacts facts;
  facts.vocab_size = static_cast<int32_t>(header.vocab_size);
  facts.max_seq_len = static_cast<int32_t>(header.max_seq_len);
  facts.block_size = static_cast<int32_t>(header.block_size);
  facts.block_bytes.assign(header.cache_groups, 0);
  facts.group_windows.assign(header.cache_groups, 0);
  facts.group_chunked.assign(header.cache_groups, 0);
  facts.group_sink_tokens.assign(header.cache_groups, 0);
  for (const KvLayerRecord& layer : kv_layers) {
    facts.block_bytes[layer.group] += static_cast<int64_t>(kv_block_bytes(layer));
    facts.group_windows[layer.group] = static_cast<int32_t>(layer.window);
    facts.group_chunked[layer.group] = static_cast<uint8_t>(layer.chunked);
    facts.group_sink_tokens[layer.group] = static_cast<int32_t>(layer.sink_tokens);
  }
  facts.group_budgets = budgets();
  if (header.logits_buffer >= 0) {
    const auto columns = static_cast<int32_t>(buffers[static_cast<size_t>(header.logits_buffer)].cols);
    facts.hidden_width = columns == facts.vocab_size ? 0 : columns;
  }
  for (const Instruction& instruction : instructions) {
    if (instruction.op != static_cast<uint32_t>(Op::kPagedAttention)) continue;
    facts.sparse_prefill = sparse_prefill_of(instruction);
    if (facts.sparse_prefill > 0) facts.chunk_multiple = facts.block_size;
  }
  for (const StateRecord& state : states) facts.state_bytes += static_cast<int64_t>(state.bytes);
  if (const Instruction* entry = heads()) {
    const auto cols = [&](int32_t buffer) {
      return static_cast<int32_t>(buffers[static_cast<size_t>(buffer)].cols);
    };
    facts.draft_width = cols(entry->in[0]);
    facts.draft_vocab = cols(entry->ints[0]);
    facts.draft_group = -1;
    for (size_t i = model_instructions(); i < instructions.size(); ++i) {
      if (!names_kv_layer(instructions[i].op)) continue;
      facts.draft_group = static_cast<int32_t>(kv_layers[static_cast<size_t>(instructions[i].ints[0])].group);
    }
  }
  return facts;
}

namespace {

// No size may be larger, so that the product of two sizes fits 64 bits and every size fits an int.
constexpr uint64_t kMaxNumber = std::numeric_limits<int32_t>::max();
constexpr uint64_t kMaxArenaRow = uint64_t{1} << 40;
// The states of a sequence then take at most 2^44 bytes.
constexpr uint32_t kMaxStates = 4096;
// Of a stage with fewer layers.
constexpr uint32_t kMostGroups = 64;
constexpr uint64_t kMaxStateBytes = uint64_t{1} << 32;

template <typename... Parts>
void require(bool holds, const Parts&... fault) {
  if (!holds) refuse_plan(concat(fault...));
}

void require_size(const std::string& field, uint64_t value) {
  require(value >= 1 && value <= kMaxNumber, field, " must be 1 to ", kMaxNumber, ", is ", value);
}

bool is_float_dtype(uint32_t dtype) { return dtype == TW_F32 || dtype == TW_BF16; }

void check_header(const PlanHeader& h, size_t file_bytes) {
  require(std::memcmp(h.magic, kPlanMagic, sizeof(kPlanMagic)) == 0, "not a plan (magic is not TWCPUPLN)");
  require(h.version == kPlanVersion, "version must be ", kPlanVersion, ", is ", h.version);
  require(h.header_bytes == sizeof(PlanHeader), "header_bytes must be ", sizeof(PlanHeader), ", is ",
          h.header_bytes);
  require(h.file_bytes == file_bytes, "header says ", h.file_bytes, " bytes, the file has ", file_bytes);
  require_size("header: vocab_size", h.vocab_size);
  // Rotary angles take positions as float32, which is exact up to 2^24.
  require(h.max_seq_len >= 1 && h.max_seq_len <= (1u << 24), "header: max_seq_len must be 1 to 2^24, is ",
          h.max_seq_len);
  const uint32_t block = h.block_size;
  require(block >= TW_LANES && block % TW_LANES == 0 && block <= TW_ATTENTION_SPLIT &&
              TW_ATTENTION_SPLIT % block == 0,
          "header: block_size must be a multiple of ", int{TW_LANES}, " that divides ",
          int{TW_ATTENTION_SPLIT}, ", is ", block);
  require(is_float_dtype(h.act_dtype), "header: act_dtype must be 0 (float32) or 1 (bfloat16), is ",
          h.act_dtype);
  // A stage of a parallel engine may lack the layers of some groups; check_groups has the rule for others.
  require(h.cache_groups <= std::max(h.kv_layers, kMostGroups), "header: cache_groups is ", h.cache_groups,
          ", more than the ", h.kv_layers, " kv_layers");
  require(h.logits_buffer >= -1 && int64_t{h.logits_buffer} < h.buffers,
          "header: logits_buffer must be -1 to ", int64_t{h.buffers} - 1, ", is ", h.logits_buffer);
  require(h.states <= kMaxStates, "header: states must be at most ", kMaxStates, ", is ", h.states);
  require(h.token_arena_bytes % 64 == 0 && h.token_arena_bytes <= kMaxArenaRow,
          "header: token_arena_bytes must be a multiple of 64 up to ", kMaxArenaRow, ", is ",
          h.token_arena_bytes);
  require(h.row_arena_bytes % 64 == 0 && h.row_arena_bytes <= kMaxArenaRow,
          "header: row_arena_bytes must be a multiple of 64 up to ", kMaxArenaRow, ", is ",
          h.row_arena_bytes);
}

// The counts are 32 bits and records are small, so this sum cannot overflow.
uint64_t bytes_of_tables(const PlanHeader& h) {
  return sizeof(PlanHeader) + uint64_t{h.kv_layers} * sizeof(KvLayerRecord) +
         uint64_t{h.states} * sizeof(StateRecord) + uint64_t{h.buffers} * sizeof(BufferRecord) +
         uint64_t{h.weights} * sizeof(WeightRecord) + uint64_t{h.instructions} * sizeof(Instruction) +
         h.names_bytes;
}

void check_kv_layer(const Plan& plan, size_t index) {
  const KvLayerRecord& layer = plan.kv_layers[index];
  const std::string at = concat("kv layer ", index, ": ");
  require(layer.group < plan.header.cache_groups, at, "group must be below ", plan.header.cache_groups,
          ", is ", layer.group);
  require_size(at + "kv_heads", layer.kv_heads);
  require_size(at + "head_dim", layer.head_dim);
  require(layer.dtype == plan.header.act_dtype || tw_kv_is_quantized(layer.dtype), at,
          "dtype must be the header's act_dtype ", plan.header.act_dtype, ", 3 (int8) or 4 (int4), is ",
          layer.dtype);
  const auto limit = static_cast<uint32_t>(tw_max_head_dim(static_cast<int>(layer.dtype)));
  require(layer.head_dim <= limit, at, "head_dim must be at most ", limit, " in dtype ", layer.dtype, ", is ",
          layer.head_dim);
  // A position of one layer then takes less than 2^24 * 24 bytes, and a block 512 times as much, so nothing
  // overflows.
  require(uint64_t{layer.kv_heads} * layer.head_dim <= (uint64_t{1} << 24), at, "kv_heads * head_dim is ",
          uint64_t{layer.kv_heads} * layer.head_dim, ", over 2^24");
  require(layer.window <= kMaxNumber, at, "window is ", layer.window, ", over ", kMaxNumber);
  require(layer.chunked <= (layer.window > 0), at, "chunked must be 0, or 1 with a window, is ",
          layer.chunked);
  const uint32_t most_sinks = layer.window > 0 && !layer.chunked ? TW_MAX_SINK_TOKENS : 0;
  require(layer.sink_tokens <= most_sinks, at, "sink_tokens must be 0, or up to ",
          uint32_t{TW_MAX_SINK_TOKENS}, " with a window that slides, is ", layer.sink_tokens);
  if (layer.v_dim == 0) return;
  require(layer.kv_heads == 1 && !tw_kv_is_quantized(layer.dtype), at,
          "v_dim needs one kv_head and a cache that is not int8 or int4, not ", layer.kv_heads, " in dtype ",
          layer.dtype);
  require(layer.v_dim <= layer.head_dim && layer.v_dim % 2 == 0 && layer.head_dim % 2 == 0, at,
          "v_dim and head_dim must be even, and v_dim at most head_dim ", layer.head_dim, ", is ",
          layer.v_dim);
}

// Checks that every group has a layer, but for those of other stages of a parallel engine, and that the
// layers of a group have the same window, because the scheduler frees the blocks of a group by its window.
void check_groups(const Plan& plan) {
  std::vector<const KvLayerRecord*> firsts(plan.header.cache_groups);
  for (size_t i = 0; i < plan.kv_layers.size(); ++i) {
    const KvLayerRecord& layer = plan.kv_layers[i];
    const KvLayerRecord*& first = firsts[layer.group];
    if (!first) first = &layer;
    require(first->window == layer.window, "kv layer ", i, ": window must be its group's ", first->window,
            ", is ", layer.window);
    require(first->chunked == layer.chunked, "kv layer ", i, ": chunked must be its group's ", first->chunked,
            ", is ", layer.chunked);
    require(first->sink_tokens == layer.sink_tokens, "kv layer ", i, ": sink_tokens must be its group's ",
            first->sink_tokens, ", is ", layer.sink_tokens);
  }
  if (plan.meets_ranks()) return;
  require(plan.header.cache_groups <= plan.header.kv_layers, "header: cache_groups is ",
          plan.header.cache_groups, ", more than the ", plan.header.kv_layers, " kv_layers");
  for (size_t i = 0; i < firsts.size(); ++i) require(firsts[i], "cache group ", i, " has no kv layer");
}

void check_state(const Plan& plan, size_t index) {
  const uint64_t bytes = plan.states[index].bytes;
  require(bytes >= 64 && bytes % 64 == 0 && bytes <= kMaxStateBytes, "state ", index,
          ": bytes must be a multiple of 64 from 64 to ", kMaxStateBytes, ", is ", bytes);
}

void check_buffer(const Plan& plan, size_t index) {
  const BufferRecord& buffer = plan.buffers[index];
  const std::string at = concat("buffer ", index, ": ");
  require(buffer.kind <= static_cast<uint32_t>(BufferKind::kRows), at, "kind must be 0 or 1, is ",
          buffer.kind);
  require(is_float_dtype(buffer.dtype) || buffer.dtype == TW_I32, at,
          "dtype must be 0 (float32), 1 (bfloat16) or 2 (int32), is ", buffer.dtype);
  require_size(at + "cols", buffer.cols);
  const uint64_t row_bytes = uint64_t{buffer.cols} * tw_dtype_bytes(static_cast<int>(buffer.dtype));
  require(buffer.stride_bytes % 64 == 0 && buffer.stride_bytes >= row_bytes, at,
          "stride_bytes must be a multiple of 64 and at least ", row_bytes, ", is ", buffer.stride_bytes);
  const bool is_rows = buffer.kind == static_cast<uint32_t>(BufferKind::kRows);
  const uint64_t arena = is_rows ? plan.header.row_arena_bytes : plan.header.token_arena_bytes;
  require(buffer.offset % 64 == 0, at, "offset must be a multiple of 64, is ", buffer.offset);
  require(buffer.offset <= arena && buffer.stride_bytes <= arena - buffer.offset, at, "offset ",
          buffer.offset, " + stride_bytes ", buffer.stride_bytes, " must fit the arena's ", arena, " bytes");
}

uint64_t expected_bytes(const WeightRecord& weight) {
  const int dtype = static_cast<int>(weight.dtype);
  if (weight.layout == static_cast<uint32_t>(WeightLayout::kPanels)) {
    return uint64_t{weight.n / TW_LANES} * tw_panel_bytes(dtype, weight.k);
  }
  if (is_quantized(weight)) {
    return uint64_t{weight.n / TW_LANES} *
           static_cast<uint64_t>(tw_quantized_panel_bytes(dtype, weight.k, weight.group));
  }
  return uint64_t{weight.n} * weight.k * tw_dtype_bytes(dtype);
}

// Refuses a dtype or a group that the weight's layout cannot hold.
void check_weight_type(const WeightRecord& weight, const std::string& at) {
  const uint32_t group = weight.group;
  bool known = false;
  switch (static_cast<WeightLayout>(weight.layout)) {
    case WeightLayout::kRaw:
      known = weight.dtype == TW_F32;
      break;
    case WeightLayout::kPanels:
      known = is_float_dtype(weight.dtype);
      break;
    case WeightLayout::kQuantized:
      known = tw_multiplies_integers(static_cast<int>(weight.dtype));
      break;
    case WeightLayout::kWeightOnly:
      known = tw_multiplies_floats(static_cast<int>(weight.dtype));
      break;
    default:
      refuse_plan(concat(at, "layout must be 0 to 3, is ", weight.layout));
  }
  require(known, at, "dtype ", weight.dtype, " is unknown for layout ", weight.layout);
  require(is_quantized(weight) ? tw_quantizes(static_cast<int>(weight.dtype), group) : group == 0, at,
          "group ", group, " is unknown for layout ", weight.layout, " and dtype ", weight.dtype);
}

void check_weight(const Plan& plan, size_t index) {
  const WeightRecord& weight = plan.weights[index];
  const std::string at = concat("weight ", index, ": ");
  require(weight.name < plan.names.size(), at, "name ", weight.name, " lies outside the string table of ",
          plan.names.size(), " bytes");
  require_size(at + "n", weight.n);
  require_size(at + "k", weight.k);
  require(uint64_t{weight.n} * weight.k <= (uint64_t{1} << 56), at, "n * k is too large");
  check_weight_type(weight, at);
  require(weight.layout == static_cast<uint32_t>(WeightLayout::kRaw) || weight.n % TW_LANES == 0, at,
          "n must be a multiple of 16, is ", weight.n);
  require(weight.bytes == expected_bytes(weight), at, "bytes must be ", expected_bytes(weight), ", is ",
          weight.bytes);
  require(weight.offset % 64 == 0, at, "offset must be a multiple of 64, is ", weight.offset);
  const uint64_t file = plan.header.weights_bytes;
  require(weight.offset <= file && weight.bytes <= file - weight.offset, at, "offset ", weight.offset,
          " + bytes ", weight.bytes, " must fit the ", file, " bytes of weights.bin");
}

template <typename Record>
const std::byte* read_table(const std::byte* from, uint32_t count, std::vector<Record>* table) {
  table->resize(count);
  if (count > 0) std::memcpy(table->data(), from, count * sizeof(Record));
  return from + count * sizeof(Record);
}

}  // namespace

Plan Plan::parse(std::span<const std::byte> bytes) {
  Plan plan;
  require(bytes.size() >= sizeof(PlanHeader), "the file has ", bytes.size(),
          " bytes, the header alone needs ", sizeof(PlanHeader));
  std::memcpy(&plan.header, bytes.data(), sizeof(PlanHeader));
  check_header(plan.header, bytes.size());
  require(bytes_of_tables(plan.header) == bytes.size(), "the tables need ", bytes_of_tables(plan.header),
          " bytes, the file has ", bytes.size());
  const std::byte* at = bytes.data() + sizeof(PlanHeader);
  at = read_table(at, plan.header.kv_layers, &plan.kv_layers);
  at = read_table(at, plan.header.states, &plan.states);
  at = read_table(at, plan.header.buffers, &plan.buffers);
  at = read_table(at, plan.header.weights, &plan.weights);
  at = read_table(at, plan.header.instructions, &plan.instructions);
  plan.names.assign(reinterpret_cast<const char*>(at), plan.header.names_bytes);
  require(!plan.names.empty() && plan.names.back() == '\0', "the string table must end with a zero byte");
  for (size_t i = 0; i < plan.kv_layers.size(); ++i) check_kv_layer(plan, i);
  check_groups(plan);
  for (size_t i = 0; i < plan.states.size(); ++i) check_state(plan, i);
  for (size_t i = 0; i < plan.buffers.size(); ++i) check_buffer(plan, i);
  for (size_t i = 0; i < plan.weights.size(); ++i) check_weight(plan, i);
  check_instructions(plan);
  return plan;
}

}  // namespace tensorwright
