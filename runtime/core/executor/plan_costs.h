// Says what the steps of a plan cost, without its weights: for estimates of a model that is not built.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PLAN_COSTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_PLAN_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/ops/op.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

// A sequence of a step: its tokens in the step, and its positions in the cache once the step has written
// them.
struct SequenceShape {
  int32_t tokens = 0, context = 0;
};

// The cost of one instruction. weight_bytes: those of cost.bytes that are weights. weight_dtype,
// weight_group: the type of its matrix (tw_dtype, -1 without one) and how many columns share a scale. size:
// the rows that a product has, those of one expert for experts, and the mean context for attention: what
// kernels reach grows with it.
struct InstructionCost {
  std::string name;  // module path in the model
  std::string op;
  std::string arithmetic;  // see Plan::arithmetic
  Cost cost;
  int64_t weight_bytes = 0;
  int32_t weight_dtype = -1, weight_group = 0;
  double size = 1;
};

// The memory that an executor takes beside weights, KV cache and states, in bytes.
struct StepMemory {
  int64_t activations = 0;  // results of operations, for the largest step
  int64_t scratch = 0;      // what the operation that needs most of it uses while it runs
};

// A buffer of the plan: where it lies among those that share memory with it, and when it is used. Bytes are
// those of one token, or of one row of logits.
struct BufferUse {
  std::string maker;  // the op that writes it, and the module
  bool of_rows = false;
  int64_t offset = 0, bytes = 0;
  int32_t first = 0, last = 0;  // instructions: the one that writes it, and the last that reads it
};

class PlanCosts {
 public:
  // Throws Error{"EngineError"} for a plan that is not sound.
  explicit PlanCosts(std::span<const std::byte> plan);

  const Plan& plan() const { return plan_; }
  // Returns the cost of each instruction that computes logits, in a step of these sequences of which `rows`
  // tokens get logits. Of a layer of experts it counts as many experts as the tokens take if each takes any
  // with the same probability. Throws Error{"InvalidRequestError"} for a step without tokens, one of more
  // than kMaxTokens or with more work than 64 bits count, and a sequence longer than its context or than the
  // plan allows.
  std::vector<InstructionCost> step(const std::vector<SequenceShape>& sequences, int32_t rows) const;
  // Returns the buffers, in the order in which they are written first. One that nothing writes is left out.
  std::vector<BufferUse> buffers() const;
  static constexpr int64_t kMaxTokens = int64_t{1} << 24;
  // Returns the memory that steps up to these limits take on `threads` threads. Throws
  // Error{"InvalidRequestError"} for limits that no executor takes.
  StepMemory memory(const StepLimits& limits, int threads);

 private:
  // Gives back addresses that mmap gave.
  struct Unmap {
    size_t bytes;
    void operator()(char* memory) const;
  };
  using Zeros = std::unique_ptr<char, Unmap>;

  static Zeros zeros(size_t bytes);
  double size_of(const Instruction& instruction, const Step& step) const;

  const Plan plan_;
  const Zeros weights_;  // as many as the plan's weights have bytes; they take no memory until they are read
  KvStorage kv_;
  StateStorage states_;
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PLAN_COSTS_H_
