// The instructions of target cpu: numbers, operands, checks and makers. Generated from the records in
// plugins/ by
//   python -m tensorwright.plugins.op_table
// Change a record (INSTRUCTION in plugins/<op>/*.py) and run that; a test compares.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_

#include <cstdint>
#include <memory>

namespace tensorwright {

class InstructionCheck;
class Operation;
struct Instruction;
struct OpContext;

// clang-format off

// Numbers are stored; none is used again. The comment gives in | weights | out | ints | floats.
enum class Op : uint32_t {
  kEmbedding = 1,  // - | table | y | ids, first, rows | scale
  kRmsNorm = 2,  // x, residual? | w | y, sum? | - | eps, weight_offset
  kMatmul = 3,  // x, residual? | w, bias? | y | epilogue, n | -
  kRotaryTable = 4,  // - | inv_freq | table | - | scale
  kRotaryKvWrite = 5,  // qkv, table? | - | q | kv_layer, heads, rotary_dim | -
  kPagedAttention = 6,  // q | sinks?, slopes? | y | kv_layer, heads, kept, sinks, recent, interval, scores, sparse_prefill | scale, softcap
  kGatherRows = 7,  // x | - | y | - | -
  kSwiglu = 8,  // x | - | y | activation | -
  kAdd = 9,  // a, b | - | y | - | -
  kRmsNormColumns = 10,  // x | w | y | start, heads | eps, weight_offset
  kElementwise = 11,  // x0, x1?, x2?, x3? | w? | y | encoded | encoded
  kLayerNorm = 12,  // x, residual? | w, b? | y, sum? | start, heads, width | eps, weight_offset
  kQuantizedMatmul = 13,  // x, residual? | w, bias? | y | epilogue, n | -
  kRoute = 14,  // logits | - | index, weights | k, normalise | -
  kExperts = 15,  // x, index, weights | gate_up, down | y | experts, activation, identities, first, total | -
  kHeadProducts = 16,  // x | w | y | heads | -
  kLatentKvWrite = 17,  // q_latent, q, kv, table? | - | y | kv_layer, heads | -
  kCarriedConv = 20,  // x | w, bias? | y | state, activation | -
  kCarriedScan = 21,  // row, dt | w | y | state, heads, groups, states | dt_min, dt_max
  kCarriedDeltaRule = 22,  // row, dt, beta | w | y | state, key_heads, heads, width | beta_scale
  kCarriedSelectiveScan = 23,  // x, dt, b, c | w | y | state, states | -
  kCarriedRgLru = 24,  // x, input, decay | w | y | state | -
  kCarriedLinearAttention = 25,  // row | w | y | state, heads, states | -
  kRouteByScore = 28,  // logits | bias?, expert_scales? | index, weights | k, normalise, score, by_scores, groups, group_limit, group_best, keeps_others | scale, epsilon, least, jitter
  kExpertsUp = 29,  // x, index, weights? | up, bias? | y | experts, activation, gated, squared, limits_activated, first, total | slope, limit, up_offset
  kExpertsDown = 30,  // x, index, weights? | down, bias? | y | experts, first, total | -
  kConcat = 31,  // x0, x1, x2?, x3? | - | y | - | -
  kWeightOnlyMatmul = 32,  // x, residual? | w, bias? | y | epilogue, n | -
  kSplitColumns = 33,  // x | columns | rest, taken | - | -
  kTakeColumns = 34,  // x | columns | y | - | -
  kDraftFeatures = 35,  // target? | - | y | logits, hidden | -
  kAllReduce = 36,  // x | - | y | - | -
  kAllGather = 37,  // x | - | y | first | -
  kSend = 38,  // x | - | y | message | -
  kReceive = 39,  // - | - | y | message | -
  kSquareSums = 40,  // x | - | y | start, columns, offset, size, runs | -
  kRmsNormBySums = 41,  // x, sums | w | y | start, offset, size, first | eps, weight_offset
};

// Numbers of definitions, which the instructions' own code shares.
inline constexpr int32_t kPagedAttentionKeptBlocks = 3;

// Defined in plugins/<op>/instruction.cc. A check throws if the instruction breaks a rule of its op; a maker
// takes only what was checked.
using InstructionRule = void(const InstructionCheck&);
using OperationMaker = std::unique_ptr<Operation>(const Instruction&, const OpContext&);
InstructionRule check_embedding;
OperationMaker make_embedding;
InstructionRule check_rms_norm;
OperationMaker make_rms_norm;
InstructionRule check_matmul;
OperationMaker make_matmul;
InstructionRule check_rotary_table;
OperationMaker make_rotary_table;
InstructionRule check_rotary_kv_write;
OperationMaker make_rotary_kv_write;
InstructionRule check_paged_attention;
OperationMaker make_paged_attention;
InstructionRule check_gather_rows;
OperationMaker make_gather_rows;
InstructionRule check_swiglu;
OperationMaker make_swiglu;
InstructionRule check_add;
OperationMaker make_add;
InstructionRule check_rms_norm_columns;
OperationMaker make_rms_norm_columns;
InstructionRule check_elementwise;
OperationMaker make_elementwise;
InstructionRule check_layer_norm;
OperationMaker make_layer_norm;
InstructionRule check_quantized_matmul;
OperationMaker make_quantized_matmul;
InstructionRule check_route;
OperationMaker make_route;
InstructionRule check_experts;
OperationMaker make_experts;
InstructionRule check_head_products;
OperationMaker make_head_products;
InstructionRule check_latent_kv_write;
OperationMaker make_latent_kv_write;
InstructionRule check_carried_conv;
OperationMaker make_carried_conv;
InstructionRule check_carried_scan;
OperationMaker make_carried_scan;
InstructionRule check_carried_delta_rule;
OperationMaker make_carried_delta_rule;
InstructionRule check_carried_selective_scan;
OperationMaker make_carried_selective_scan;
InstructionRule check_carried_rg_lru;
OperationMaker make_carried_rg_lru;
InstructionRule check_carried_linear_attention;
OperationMaker make_carried_linear_attention;
InstructionRule check_route_by_score;
OperationMaker make_route_by_score;
InstructionRule check_experts_up;
OperationMaker make_experts_up;
InstructionRule check_experts_down;
OperationMaker make_experts_down;
InstructionRule check_concat;
OperationMaker make_concat;
InstructionRule check_weight_only_matmul;
OperationMaker make_weight_only_matmul;
InstructionRule check_split_columns;
OperationMaker make_split_columns;
InstructionRule check_take_columns;
OperationMaker make_take_columns;
InstructionRule check_draft_features;
OperationMaker make_draft_features;
InstructionRule check_all_reduce;
OperationMaker make_all_reduce;
InstructionRule check_all_gather;
OperationMaker make_all_gather;
InstructionRule check_send;
OperationMaker make_send;
InstructionRule check_receive;
OperationMaker make_receive;
InstructionRule check_square_sums;
OperationMaker make_square_sums;
InstructionRule check_rms_norm_by_sums;
OperationMaker make_rms_norm_by_sums;

// How many operands an op takes and how many attributes it reads. Required operands come first.
struct OpRow {
  Op op;
  const char* name;
  int ins_required, ins, weights_required, weights, outs_required, outs, ints, floats;
  InstructionRule* check;
  OperationMaker* make;
};
inline constexpr OpRow kOpTable[] = {
  {Op::kEmbedding, "embedding", 0, 0, 1, 1, 1, 1, 3, 1, check_embedding, make_embedding},
  {Op::kRmsNorm, "rms_norm", 1, 2, 1, 1, 1, 2, 0, 2, check_rms_norm, make_rms_norm},
  {Op::kMatmul, "matmul", 1, 2, 1, 2, 1, 1, 2, 0, check_matmul, make_matmul},
  {Op::kRotaryTable, "rotary_table", 0, 0, 1, 1, 1, 1, 0, 1, check_rotary_table, make_rotary_table},
  {Op::kRotaryKvWrite, "rotary_kv_write", 1, 2, 0, 0, 1, 1, 3, 0, check_rotary_kv_write, make_rotary_kv_write},
  {Op::kPagedAttention, "paged_attention", 1, 1, 0, 2, 1, 1, 8, 2, check_paged_attention, make_paged_attention},
  {Op::kGatherRows, "gather_rows", 1, 1, 0, 0, 1, 1, 0, 0, check_gather_rows, make_gather_rows},
  {Op::kSwiglu, "swiglu", 1, 1, 0, 0, 1, 1, 1, 0, check_swiglu, make_swiglu},
  {Op::kAdd, "add", 2, 2, 0, 0, 1, 1, 0, 0, check_add, make_add},
  {Op::kRmsNormColumns, "rms_norm_columns", 1, 1, 1, 1, 1, 1, 2, 2, check_rms_norm_columns, make_rms_norm_columns},
  {Op::kElementwise, "elementwise", 1, 4, 0, 1, 1, 1, 8, 4, check_elementwise, make_elementwise},
  {Op::kLayerNorm, "layer_norm", 1, 2, 1, 2, 1, 2, 3, 2, check_layer_norm, make_layer_norm},
  {Op::kQuantizedMatmul, "quantized_matmul", 1, 2, 1, 2, 1, 1, 2, 0, check_quantized_matmul, make_quantized_matmul},
  {Op::kRoute, "route", 1, 1, 0, 0, 2, 2, 2, 0, check_route, make_route},
  {Op::kExperts, "experts", 3, 3, 2, 2, 1, 1, 5, 0, check_experts, make_experts},
  {Op::kHeadProducts, "head_products", 1, 1, 1, 1, 1, 1, 1, 0, check_head_products, make_head_products},
  {Op::kLatentKvWrite, "latent_kv_write", 3, 4, 0, 0, 1, 1, 2, 0, check_latent_kv_write, make_latent_kv_write},
  {Op::kCarriedConv, "carried_conv", 1, 1, 1, 2, 1, 1, 2, 0, check_carried_conv, make_carried_conv},
  {Op::kCarriedScan, "carried_scan", 2, 2, 1, 1, 1, 1, 4, 2, check_carried_scan, make_carried_scan},
  {Op::kCarriedDeltaRule, "carried_delta_rule", 3, 3, 1, 1, 1, 1, 4, 1, check_carried_delta_rule, make_carried_delta_rule},
  {Op::kCarriedSelectiveScan, "carried_selective_scan", 4, 4, 1, 1, 1, 1, 2, 0, check_carried_selective_scan, make_carried_selective_scan},
  {Op::kCarriedRgLru, "carried_rg_lru", 3, 3, 1, 1, 1, 1, 1, 0, check_carried_rg_lru, make_carried_rg_lru},
  {Op::kCarriedLinearAttention, "carried_linear_attention", 1, 1, 1, 1, 1, 1, 3, 0, check_carried_linear_attention, make_carried_linear_attention},
  {Op::kRouteByScore, "route_by_score", 1, 1, 0, 2, 2, 2, 8, 4, check_route_by_score, make_route_by_score},
  {Op::kExpertsUp, "experts_up", 2, 3, 1, 2, 1, 1, 7, 3, check_experts_up, make_experts_up},
  {Op::kExpertsDown, "experts_down", 2, 3, 1, 2, 1, 1, 3, 0, check_experts_down, make_experts_down},
  {Op::kConcat, "concat", 2, 4, 0, 0, 1, 1, 0, 0, check_concat, make_concat},
  {Op::kWeightOnlyMatmul, "weight_only_matmul", 1, 2, 1, 2, 1, 1, 2, 0, check_weight_only_matmul, make_weight_only_matmul},
  {Op::kSplitColumns, "split_columns", 1, 1, 1, 1, 2, 2, 0, 0, check_split_columns, make_split_columns},
  {Op::kTakeColumns, "take_columns", 1, 1, 1, 1, 1, 1, 0, 0, check_take_columns, make_take_columns},
  {Op::kDraftFeatures, "draft_features", 0, 1, 0, 0, 1, 1, 2, 0, check_draft_features, make_draft_features},
  {Op::kAllReduce, "all_reduce", 1, 1, 0, 0, 1, 1, 0, 0, check_all_reduce, make_all_reduce},
  {Op::kAllGather, "all_gather", 1, 1, 0, 0, 1, 1, 1, 0, check_all_gather, make_all_gather},
  {Op::kSend, "send", 1, 1, 0, 0, 1, 1, 1, 0, check_send, make_send},
  {Op::kReceive, "receive", 0, 0, 0, 0, 1, 1, 1, 0, check_receive, make_receive},
  {Op::kSquareSums, "square_sums", 1, 1, 0, 0, 1, 1, 5, 0, check_square_sums, make_square_sums},
  {Op::kRmsNormBySums, "rms_norm_by_sums", 2, 2, 1, 1, 1, 1, 4, 2, check_rms_norm_by_sums, make_rms_norm_by_sums},
};

// out[`out`] may be written over in[`in`] if in[`without`] is absent (-1: always), for the kernel reads and
// writes them element by element in one order.
struct OpSharing {
  Op op;
  int out, in, without;
};
inline constexpr OpSharing kOpSharings[] = {
  {Op::kRmsNorm, 1, 1, -1},  // sum over residual
  {Op::kRmsNorm, 1, 0, -1},  // sum over x
  {Op::kMatmul, 0, 1, -1},  // y over residual
  {Op::kAdd, 0, 0, -1},  // y over a
  {Op::kAdd, 0, 1, -1},  // y over b
  {Op::kRmsNormColumns, 0, 0, -1},  // y over x
  {Op::kElementwise, 0, 0, -1},  // y over x0
  {Op::kElementwise, 0, 1, -1},  // y over x1
  {Op::kElementwise, 0, 2, -1},  // y over x2
  {Op::kElementwise, 0, 3, -1},  // y over x3
  {Op::kLayerNorm, 1, 1, -1},  // sum over residual
  {Op::kLayerNorm, 1, 0, -1},  // sum over x
  {Op::kLayerNorm, 0, 0, 1},  // y over x
  {Op::kQuantizedMatmul, 0, 1, -1},  // y over residual
  {Op::kWeightOnlyMatmul, 0, 1, -1},  // y over residual
  {Op::kSplitColumns, 0, 0, -1},  // rest over x
  {Op::kAllReduce, 0, 0, -1},  // y over x
  {Op::kSend, 0, 0, -1},  // y over x
  {Op::kRmsNormBySums, 0, 0, -1},  // y over x
};

// clang-format on

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_OP_TABLE_H_
