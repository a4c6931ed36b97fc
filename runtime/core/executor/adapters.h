// Computes what adapters add to the products of a plan: for each row of a step that has an adapter, the
// product of x with the adapter's two thin matrices. x, the sums and what is added are float32; the matrices
// are float32, or bfloat16 that is widened, which changes no number. Rows of one adapter are computed
// together, whoever their sequences are. A row's bits depend on the row and its adapter alone, because each
// product keeps the numeric contract of plugins/README.md.
#ifndef TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_ADAPTERS_H_
#define TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_ADAPTERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/matmul/kernel.h"
#include "runtime/core/base/arena.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/interface/adapter.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/ops/step_check.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

// The weights of an adapter, as its loader has them. Pointers must be valid during AdapterProducts::make()
// only.
struct AdapterWeights {
  // The columns [column, column + columns) of an addend (tw_matmul_args) are h[first, first + rank) * b^T,
  // where h is x * a^T, each column times its scale.
  struct Part {
    int32_t first, rank, column, columns;
    const void* b;  // [columns, rank]
  };
  // What the adapter adds to the product of one instruction.
  struct Product {
    int32_t instruction;
    int32_t rank;                   // rows of a, those of all parts
    int32_t k;                      // columns of a
    const void* a;                  // [rank, k]
    std::vector<Part> parts;        // in ascending order of their columns, which do not overlap
    int dtype = TW_F32;             // of a and b: TW_F32 or TW_BF16
    const float* scales = nullptr;  // [rank], of the columns of h; null: all are 1
  };
  std::string key;                // of the adapter's content
  std::vector<Product> products;  // at most one for each instruction
};

class AdapterProducts {
 public:
  // max_adapters: how many may live at once, 0: none may. max_rank: the most rows of an adapter's `a`.
  AdapterProducts(const Plan& plan, int32_t max_adapters, int32_t max_rank, Isa isa);

  // Takes the memory of the largest step. Steps may have adapters after that.
  void allocate(const StepLimits& limits);

  // Copies the weights of an adapter. Any thread may call it at any time. Throws Error: InvalidOptionError
  // for weights that do not fit the plan, AdapterError if max_adapters live already, OutOfMemoryError.
  SharedAdapter make(const AdapterWeights& weights) const;
  // Returns whether an adapter was made here.
  bool owns(const Adapter& adapter) const;
  // Returns how many adapters live: those that are loaded, and those that requests still use.
  int32_t live() const { return live_->load(); }

  // Groups the rows of a step by adapter. Throws Error{"InvalidRequestError"} before any effect if a sequence
  // has an adapter of another executor.
  void begin(const Step& step);
  // Computes what the adapters of the step add to the product of an instruction, and returns a pointer for
  // each of the instruction's rows, null where nothing is added. Null: nothing is added to any row. The
  // pointers are valid until the next call.
  const float* const* addends(size_t instruction, const StepView& view, ThreadTeam& team);

 private:
  struct Weights;  // an adapter's, packed

  // A product of the plan.
  struct Linear {
    int32_t instruction;
    BufferRef x;
    int32_t columns;  // of the addend that are read
    int32_t width;    // of the addend, in floats
  };
  // Rows of one adapter: order[begin, end) of a RowGroups.
  struct Group {
    const Weights* adapter;
    int32_t begin, end;
  };
  // The rows of a step that have an adapter, by buffer kind.
  struct RowGroups {
    std::vector<int32_t> order;
    std::vector<Group> groups;
  };
  // A range of rows of `order` and of panels that one task computes.
  struct Tile {
    const Weights* adapter;
    int32_t part;  // of the adapter's product; -1: the product with `a`
    int32_t begin, end, panel_begin, panel_end;
  };

  void check(const AdapterWeights::Product& product) const;
  const Linear* linear_of(size_t instruction) const;
  void group_rows(const Step& step, const std::vector<int32_t>* rows, RowGroups* into) const;
  void gather(const Linear& linear, const RowGroups& rows, const StepView& view, ThreadTeam& team);
  void multiply(const Linear& linear, ThreadTeam& team, bool expand);
  void run_tile(const Linear& linear, const Tile& tile) const;

  std::vector<Linear> linears_;
  std::vector<int32_t> linear_of_;  // [instructions]: an index into linears_, -1 for what is no product
  const int32_t max_adapters_, max_rank_;
  const tw_matmul_fn kernel_, bf16_kernel_;  // by the dtype of an adapter
  std::shared_ptr<std::atomic<int32_t>> live_;

  Arena x_, h_, addends_;  // [rows, widest k], [rows, max_rank], [rows, widest addend] of float32
  RowGroups rows_[2];      // by BufferKind
  std::vector<Tile> tiles_;
  std::vector<const float*> pointers_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_EXECUTOR_ADAPTERS_H_
