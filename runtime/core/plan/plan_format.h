// Defines the binary records of <engine>/cpu/plan.bin, little-endian. builder/emit/cpu_plan.py writes what
// plan.cc reads; a change here is a new kPlanVersion.
//
//   PlanHeader | KvLayerRecord[kv_layers] | StateRecord[states] | BufferRecord[buffers] |
//   WeightRecord[weights] | Instruction[instructions] | names: string table, NUL-terminated UTF-8
//
// The reader (plan.cc, plan_check.cc) also refuses a plan that breaks one of these rules:
// * The file ends with the string table, which is not empty and whose last byte is 0. Offset 0 may be the
//   empty name.
// * Reserved fields, and ints and floats that an op does not use, are 0. Operands that an op does not use
//   are -1.
// * An instruction reads only buffers, and attention only kv layers, that an earlier one wrote.
// * An output may share memory with an input only if both have the same offset, stride and dtype, and only
//   where op_table.h allows it (kOpSharings).
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_FORMAT_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_FORMAT_H_

#include <cstdint>

#include "runtime/core/plan/op_table.h"

namespace tensorwright {

inline constexpr char kPlanMagic[8] = {'T', 'W', 'C', 'P', 'U', 'P', 'L', 'N'};
inline constexpr uint32_t kPlanVersion = 3;

struct PlanHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;   // sizeof(PlanHeader)
  uint64_t file_bytes;     // of plan.bin
  uint64_t weights_bytes;  // of weights.bin
  uint32_t vocab_size;
  uint32_t max_seq_len;
  uint32_t block_size;
  uint32_t act_dtype;  // tw_dtype of matmul inputs and of q: TW_F32 or TW_BF16
  uint32_t kv_layers;
  uint32_t cache_groups;
  uint32_t buffers;
  uint32_t weights;
  uint32_t instructions;
  uint32_t names_bytes;
  // Index of the BufferRecord that holds the logits, rows kind, TW_F32; -1 in the plan of a stage that sends
  // what it computes to the next one.
  int32_t logits_buffer;
  uint32_t states;             // recurrent layers; 0 in plans from before there were any
  uint64_t token_arena_bytes;  // bytes per token of the arena of the token-kind buffers
  uint64_t row_arena_bytes;    // bytes per logit row of the arena of the row-kind buffers
};
static_assert(sizeof(PlanHeader) == 96);

struct KvLayerRecord {
  uint32_t group, kv_heads, head_dim;
  uint16_t dtype;    // the header's act_dtype, TW_I8 or TW_I4
  uint16_t chunked;  // 1: the window begins at a multiple of its length (base/first_seen.h); 0: it slides
  uint32_t window;   // 0: none
  // 0: V has rows of its own. Else V is the first v_dim columns of K, of which there is one head.
  uint32_t v_dim;
  // How many first positions of a sequence every position sees besides its window, which must slide.
  uint32_t sink_tokens;
};
static_assert(sizeof(KvLayerRecord) == 28);

// The state that one recurrent layer keeps for each sequence. Its content belongs to the instructions that
// name the record.
struct StateRecord {
  uint64_t bytes;  // of one sequence: a multiple of 64, 64 to 2^32
};
static_assert(sizeof(StateRecord) == 8);

enum class BufferKind : uint32_t { kTokens = 0, kRows = 1 };

// A buffer of capacity rows lives at arena + offset * capacity; its row stride is stride_bytes. Offsets and
// strides are multiples of 64; offset + stride_bytes fits the arena. The capacity is the step's own number of
// rows, so that the buffers of a decode step lie close together.
struct BufferRecord {
  uint32_t kind;  // BufferKind
  uint32_t dtype;
  uint32_t cols;
  uint32_t stride_bytes;
  uint64_t offset;  // bytes per row of capacity
};
static_assert(sizeof(BufferRecord) == 24);

// kQuantized, kWeightOnly: panels of plugins/quantized_matmul/layout.h, with a dtype of quantized weights.
// Products with kQuantized round activations to whole numbers too; products with kWeightOnly do not.
enum class WeightLayout : uint32_t { kRaw = 0, kPanels = 1, kQuantized = 2, kWeightOnly = 3 };

struct WeightRecord {
  uint32_t dtype;
  uint32_t layout;  // WeightLayout
  uint32_t n;       // rows of the stored matrix: 16 * panels for panels, 1 for vectors
  uint32_t k;       // columns
  // The field `bytes` is exact: n / 16 * tw_panel_bytes(dtype, k) for panels, n / 16 *
  // tw_quantized_panel_bytes(dtype, k, group) for quantized panels, and n * k * size for raw weights, which
  // are float32.
  uint64_t offset;  // into weights.bin, a multiple of 64
  uint64_t bytes;
  uint32_t name;   // offset into the string table
  uint32_t group;  // quantized panels: 32, 64, 128, or 0 for one scale per row; else 0
};
static_assert(sizeof(WeightRecord) == 40);

inline bool keeps_activations(const WeightRecord& w) {
  return w.layout == static_cast<uint32_t>(WeightLayout::kWeightOnly);
}

// Returns whether a weight has panels of plugins/quantized_matmul/layout.h.
inline bool is_quantized(const WeightRecord& w) {
  return w.layout == static_cast<uint32_t>(WeightLayout::kQuantized) || keeps_activations(w);
}

// op_table.h has the ops and what each of them reads. The check in plugins/<op>/instruction.cc says what the
// operands and attributes of an op must be.
struct Instruction {
  uint32_t op;
  uint32_t name;      // offset into the string table: module path in the model
  int32_t in[4];      // buffer indices, -1 absent
  int32_t out[2];     // buffer indices, -1 absent
  int32_t weight[2];  // weight indices, -1 absent
  int32_t ints[8];
  float floats[4];
};
static_assert(sizeof(Instruction) == 88);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_FORMAT_H_
