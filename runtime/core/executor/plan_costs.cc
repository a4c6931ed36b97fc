#include "runtime/core/executor/plan_costs.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/plan/op_table.h"

namespace tensorwright {
namespace {

[[noreturn]] void refuse_costs(const std::string& fault) { throw Error("InvalidRequestError", fault); }

// Returns how many of `experts` are taken at least once by `tokens` tokens that take `slots` each.
double taken_experts(const ExpertUse& use, int64_t tokens) {
  const double missed = 1.0 - static_cast<double>(use.slots) / use.total;
  return use.experts * (1.0 - std::pow(missed, static_cast<double>(tokens)));
}

// Refuses a step whose operations, or bytes, 64 bits could not count. A matrix has at most 8 weights in a
// byte. The results of one token, of which there are token_arena_bytes, bound what attention has of heads.
void check_work(int64_t tokens, int64_t longest, const Plan& plan) {
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t weights = 0, pairs = 0, work = 0;
  const bool fits = !__builtin_mul_overflow(plan.header.weights_bytes, 8 * tokens, &weights) &&
                    !__builtin_mul_overflow(tokens, longest, &pairs) &&
                    !__builtin_mul_overflow(pairs, plan.header.token_arena_bytes, &work) && weights < kMost &&
                    work < kMost;
  if (!fits)
    refuse_costs(concat("step: ", tokens, " tokens of up to ", longest, " positions are too much to count"));
}

Step step_of(const std::vector<SequenceShape>& sequences, int32_t rows, const Plan& plan) {
  int64_t tokens = 0;
  int32_t longest = 0;
  const bool sparse = plan.facts().sparse_prefill > 0;
  Step step;
  step.seq_starts.push_back(0);
  for (const SequenceShape& sequence : sequences) {
    const bool sound = sequence.tokens > 0 && sequence.context >= sequence.tokens &&
                       static_cast<uint32_t>(sequence.context) <= plan.header.max_seq_len;
    if (!sound) {
      refuse_costs(concat("step: a sequence must have 1 to ", plan.header.max_seq_len,
                          " positions, and tokens among them; one has ", sequence.context, " positions and ",
                          sequence.tokens, " tokens"));
    }
    tokens += sequence.tokens;
    longest = std::max(longest, sequence.context);
    if (tokens > PlanCosts::kMaxTokens)
      refuse_costs(concat("step: more than ", PlanCosts::kMaxTokens, " tokens"));
    step.seq_starts.push_back(static_cast<int32_t>(tokens));
    step.context_lens.push_back(sequence.context);
    // Several tokens are the end of a prompt, one is drawn.
    if (sparse) step.prompt_lens.push_back(sequence.tokens > 1 ? sequence.context : 1);
  }
  check_work(tokens, longest, plan);
  if (tokens == 0 || rows < 0 || rows > tokens) {
    refuse_costs(concat("step: must have tokens, and logits for no more; has ", tokens, " and ", rows));
  }
  step.token_ids.resize(static_cast<size_t>(tokens));
  step.logit_rows.resize(static_cast<size_t>(rows));
  return step;
}

}  // namespace

void PlanCosts::Unmap::operator()(char* memory) const { munmap(memory, bytes); }

// An operation may read small weights when it is made, so there must be memory. Nobody writes to it.
PlanCosts::Zeros PlanCosts::zeros(size_t bytes) {
  if (bytes == 0) return {nullptr, {0}};
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error("OutOfMemoryError", concat("no addresses for ", bytes, " bytes of weights"));
  }
  return {static_cast<char*>(memory), {bytes}};
}

PlanCosts::PlanCosts(std::span<const std::byte> plan)
    : plan_(Plan::parse(plan)), weights_(zeros(plan_.header.weights_bytes)), kv_(plan_), states_(plan_) {
  const OpContext context{plan_, weights_.get(), kv_, states_, selected_isa()};
  for (const Instruction& instruction : plan_.instructions) {
    operations_.push_back(make_operation(instruction, context));
  }
}

double PlanCosts::size_of(const Instruction& instruction, const Step& step) const {
  if (instruction.op == static_cast<uint32_t>(Op::kPagedAttention)) {
    double sum = 0;
    for (const int32_t context : step.context_lens) sum += context;
    return sum / step.seqs();
  }
  const int32_t out = instruction.out[0];
  const bool of_rows =
      out >= 0 && plan_.buffers[static_cast<size_t>(out)].kind == static_cast<uint32_t>(BufferKind::kRows);
  return of_rows ? step.rows() : step.tokens();
}

std::vector<InstructionCost> PlanCosts::step(const std::vector<SequenceShape>& sequences,
                                             int32_t rows) const {
  const Step step = step_of(sequences, rows, plan_);
  const StepView view{step, {nullptr, nullptr}, {step.tokens(), step.rows()}, nullptr};
  std::vector<InstructionCost> costs;
  const size_t end = plan_.logit_instructions();
  for (size_t i = 0; i < end; ++i) {
    const Instruction& instruction = plan_.instructions[i];
    InstructionCost cost{plan_.name(instruction.name), op_name(instruction.op), plan_.arithmetic(instruction),
                         operations_[i]->cost(view)};
    cost.size = size_of(instruction, step);
    for (const int32_t index : instruction.weight) {
      if (index < 0) continue;
      const WeightRecord& weight = plan_.weights[static_cast<size_t>(index)];
      if (weight.layout == static_cast<uint32_t>(WeightLayout::kRaw)) continue;
      cost.weight_dtype = static_cast<int32_t>(weight.dtype);
      cost.weight_group = static_cast<int32_t>(weight.group);
      break;
    }
    if (const ExpertUse use = operations_[i]->expert_use(); use.experts > 0) {
      const double taken = taken_experts(use, step.tokens());
      cost.weight_bytes = static_cast<int64_t>(taken * static_cast<double>(use.bytes));
      cost.cost.bytes += cost.weight_bytes;
      const double pairs = step.tokens() * static_cast<double>(use.slots) * use.experts / use.total;
      cost.size = pairs / std::max(1.0, taken);
    } else if (instruction.op != static_cast<uint32_t>(Op::kEmbedding)) {
      for (const int32_t index : instruction.weight) {
        if (index < 0) continue;
        cost.weight_bytes += static_cast<int64_t>(plan_.weights[static_cast<size_t>(index)].bytes);
      }
      cost.weight_bytes = std::min(cost.weight_bytes, cost.cost.bytes);  // without rows nothing is read
    }
    costs.push_back(std::move(cost));
  }
  return costs;
}

std::vector<BufferUse> PlanCosts::buffers() const {
  std::vector<BufferUse> uses;
  std::vector<int64_t> place(plan_.buffers.size(), -1);  // in `uses`
  for (size_t i = 0; i < plan_.instructions.size(); ++i) {
    const Instruction& instruction = plan_.instructions[i];
    for (const int32_t index : instruction.in) {
      if (index < 0 || place[static_cast<size_t>(index)] < 0) continue;
      uses[static_cast<size_t>(place[static_cast<size_t>(index)])].last = static_cast<int32_t>(i);
    }
    for (const int32_t index : instruction.out) {
      if (index < 0 || place[static_cast<size_t>(index)] >= 0) continue;
      const BufferRecord& buffer = plan_.buffers[static_cast<size_t>(index)];
      place[static_cast<size_t>(index)] = static_cast<int64_t>(uses.size());
      uses.push_back({concat(op_name(instruction.op), " ", plan_.name(instruction.name)),
                      buffer.kind == static_cast<uint32_t>(BufferKind::kRows),
                      static_cast<int64_t>(buffer.offset), static_cast<int64_t>(buffer.stride_bytes),
                      static_cast<int32_t>(i), static_cast<int32_t>(i)});
    }
  }
  return uses;
}

StepMemory PlanCosts::memory(const StepLimits& limits, int threads) {
  if (limits.tokens < 1 || limits.tokens > kMaxTokens || limits.rows < 0 || limits.rows > kMaxTokens ||
      limits.seqs < 1 || limits.seqs > kMaxTokens || threads < 1 || threads > ThreadTeam::kMaxThreads) {
    refuse_costs(concat("memory: must be for 1 to ", kMaxTokens,
                        " tokens, as many rows and sequences, and 1 to ", ThreadTeam::kMaxThreads,
                        " threads, not ", limits.tokens, ", ", limits.rows, ", ", limits.seqs, " and ",
                        threads));
  }
  size_t scratch = 0;
  for (const auto& operation : operations_) {
    scratch = std::max(scratch, operation->reserve(limits, threads));
  }
  int64_t tokens = 0, rows = 0, activations = 0;
  if (__builtin_mul_overflow(plan_.header.token_arena_bytes, limits.tokens, &tokens) ||
      __builtin_mul_overflow(plan_.header.row_arena_bytes, limits.rows, &rows) ||
      __builtin_add_overflow(tokens, rows, &activations)) {
    refuse_costs(concat("memory: results of ", limits.tokens, " tokens have more bytes than 64 bits count"));
  }
  return {activations, static_cast<int64_t>(scratch)};
}

}  // namespace tensorwright
