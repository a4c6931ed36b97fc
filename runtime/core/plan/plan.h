// Reads a plan from untrusted bytes: once parse() returns, every index, size and shape in the plan is sound.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/interface/executor.h"
#include "runtime/core/plan/plan_format.h"

namespace tensorwright {

struct Plan {
  PlanHeader header;
  std::vector<KvLayerRecord> kv_layers;
  std::vector<StateRecord> states;
  std::vector<BufferRecord> buffers;
  std::vector<WeightRecord> weights;
  std::vector<Instruction> instructions;
  std::string names;  // the string table

  // Throws Error{"EngineError"} that names the record and the field at fault.
  static Plan parse(std::span<const std::byte> bytes);

  // The NUL-terminated name at an offset that parse() has checked.
  const char* name(uint32_t offset) const { return names.data() + offset; }
  // Returns the bytes of one KV block of one layer.
  size_t kv_block_bytes(const KvLayerRecord& layer) const;
  // Returns the instruction draft_features, behind which are those of heads; null for a plan without heads.
  const Instruction* heads() const;
  // Returns whether an instruction is computed by several ranks together.
  bool meets_ranks() const;
  // Returns how many instructions compute the model: those before draft_features, or all.
  size_t model_instructions() const;
  // Returns how many instructions compute the logits. Those up to model_instructions() compute features.
  size_t logit_instructions() const;
  // Returns the name of the type whose peak bounds an instruction's arithmetic: "int8" for products of
  // quantized weights, the weights' or the cache's type for other products, else "float32".
  const char* arithmetic(const Instruction& instruction) const;
  // Returns the blocks of a sequence of max_seq_len positions.
  int32_t max_blocks() const {
    return static_cast<int32_t>((header.max_seq_len - 1) / header.block_size + 1);
  }
  // Returns what sequences may keep of each cache group; empty if none has a budget.
  std::vector<BlockBudget> budgets() const;
  ModelFacts facts() const;
};

// Returns the bytes of the state that scores so many blocks: 8 and 1 for each (ops/kept_blocks.h).
constexpr uint64_t kept_bytes(int32_t blocks) {
  return (uint64_t{9} * static_cast<uint32_t>(blocks) + 63) / 64 * 64;
}

// Where the whole numbers of a budget begin among those of an instruction of attention: kept, sinks, recent,
// interval, scores.
inline constexpr int kBudgetInts = 2, kBudgetEnd = kBudgetInts + 5;

// Returns the attribute `scores` of an instruction of attention: the number of a state and 1, or 0 without a
// budget. An instruction that nobody checked yet can have any number there.
constexpr int32_t scores_of(const Instruction& attention) { return attention.ints[kBudgetEnd - 1]; }

// Returns what an instruction of attention says of the budget of its group.
BlockBudget budget_of(const Instruction& instruction);

// Returns the most positions that a row of a prompt sees in an instruction of attention; 0: all.
constexpr int32_t sparse_prefill_of(const Instruction& attention) { return attention.ints[kBudgetEnd]; }

// Returns whether an op reads or writes the cache of a KV layer, which its first whole number names.
bool names_kv_layer(uint32_t op);

// Returns the name of an op ("embedding", "rms_norm", ...), or null if there is no such op.
const char* op_name(uint32_t op);

// Throws the error for a fault of a plan: "plan.bin: <fault>; rebuild the engine with build-engine".
[[noreturn]] void refuse_plan(const std::string& fault);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_H_
