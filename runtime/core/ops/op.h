// An Operation is one prepared instruction: it is made once at load and runs once per step.
// plugins/<op>/instruction.cc has the operation of each op.
#ifndef TENSORWRIGHT_RUNTIME_CORE_OPS_OP_H_
#define TENSORWRIGHT_RUNTIME_CORE_OPS_OP_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/common/kernel_types.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/interface/ranks.h"
#include "runtime/core/ops/kv_storage.h"
#include "runtime/core/ops/state_storage.h"
#include "runtime/core/ops/step_check.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

// What the operations of a step may read and write.
struct StepView {
  const Step& step;
  char* arenas[2];    // by BufferKind
  int32_t counts[2];  // by BufferKind: tokens and logit rows of the step
  char* scratch;      // as many bytes as the largest reserve() returned; it holds nothing between operations
  const float* features = nullptr;  // [tokens, draft_width] in a step of heads, see Executor::run_draft
  // [rows of the operation's x]: what adapters add to the sums of the product that runs next, as
  // tw_matmul_args says; null if they add nothing.
  const float* const* addends = nullptr;
};

// A buffer of the plan: [rows, cols], where rows is the step's count for the buffer's kind.
struct BufferRef {
  int kind = 0;  // index into StepView::arenas
  int dtype = TW_F32;
  int32_t cols = 0;
  int64_t stride = 0;  // elements
  size_t stride_bytes = 0;
  size_t offset = 0;  // bytes per row of the step

  BufferRef() = default;
  explicit BufferRef(const BufferRecord& record);

  int32_t rows(const StepView& view) const { return view.counts[kind]; }
  char* at(const StepView& view, int32_t row = 0) const {
    return view.arenas[kind] + offset * static_cast<size_t>(view.counts[kind]) +
           stride_bytes * static_cast<size_t>(row);
  }
  float* floats(const StepView& view, int32_t row = 0) const {
    return reinterpret_cast<float*>(at(view, row));
  }
  int64_t row_bytes() const { return int64_t{cols} * static_cast<int64_t>(tw_dtype_bytes(dtype)); }
};

// What an operation costs in a step: the bytes that it must move and its arithmetic (a multiply-add counts
// two).
struct Cost {
  int64_t bytes = 0, operations = 0;
};

// What a mixture of experts says of itself. An operation without experts has none.
struct ExpertUse {
  int32_t experts = 0;
  int32_t total =
      0;  // of how many experts a row takes some; more than `experts` if other ranks have the rest
  int32_t slots = 0;  // how many experts a row takes
  int64_t bytes = 0;  // of the weights of one expert
  // For each expert the first of its rows in the last step, if rows are sorted by expert, and the end. Null
  // in all but one of the operations that make up one layer of experts.
  const std::vector<int32_t>* starts = nullptr;
};

class Operation {
 public:
  virtual ~Operation() = default;
  virtual void run(const StepView& view, ThreadTeam& team) = 0;
  virtual Cost cost(const StepView& view) const = 0;
  virtual ExpertUse expert_use() const { return {}; }
  // Takes the memory of tables for the largest step. Returns the bytes of scratch that run() may use.
  virtual size_t reserve(const StepLimits& limits, int threads) {
    (void)limits, (void)threads;
    return 0;
  }
};

// What an instruction needs to become an operation. The plan has been checked, so its indices and shapes are
// sound.
struct OpContext {
  const Plan& plan;
  const char* weights;  // weights.bin
  KvStorage& kv;
  StateStorage& states;
  Isa isa;
  RankPlace place = {};  // without ranks, no operation runs that needs them

  BufferRef buffer(int32_t index) const { return BufferRef(plan.buffers[static_cast<size_t>(index)]); }
  const WeightRecord& weight(int32_t index) const { return plan.weights[static_cast<size_t>(index)]; }
  const char* weight_data(int32_t index) const {
    return index < 0 ? nullptr : weights + weight(index).offset;
  }
  const float* weight_floats(int32_t index) const {
    return reinterpret_cast<const float*>(weight_data(index));
  }
};

// Makes the operation of an instruction.
std::unique_ptr<Operation> make_operation(const Instruction& instruction, const OpContext& context);

// Calls body(begin, end) for ranges that make up [0, rows), in parallel where that pays: a task has about 16
// thousand elements.
template <typename Body>
void split_rows(ThreadTeam& team, int32_t rows, int64_t elements_per_row, Body&& body) {
  const int64_t elements = int64_t{rows} * elements_per_row;
  const int64_t wanted = std::min<int64_t>({rows, elements / 16384, int64_t{4} * team.threads()});
  const int tasks = rows == 0 ? 0 : static_cast<int>(std::max<int64_t>(1, wanted));
  team.run(tasks, [&](int task, int) {
    const auto begin = static_cast<int32_t>(int64_t{rows} * task / tasks);
    const auto end = static_cast<int32_t>(int64_t{rows} * (task + 1) / tasks);
    body(begin, end);
  });
}

// Calls body(seq, part) for `parts` parts of every sequence of the step that has tokens, one task each. Tasks
// are counted in 32 bits: sequences with very many parts take several regions.
template <typename Body>
void split_sequences(const StepView& view, ThreadTeam& team, int32_t parts, Body&& body) {
  const int32_t seqs = view.step.seqs(), at_once = std::max(1, std::numeric_limits<int32_t>::max() / parts);
  for (int32_t first = 0; first < seqs; first += std::min(at_once, seqs - first)) {
    team.run(std::min(at_once, seqs - first) * parts, [&](int task, int) {
      const int32_t seq = first + task / parts;
      const int32_t* start = view.step.seq_starts.data() + seq;
      if (start[1] > start[0]) body(seq, task % parts);
    });
  }
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_OPS_OP_H_
