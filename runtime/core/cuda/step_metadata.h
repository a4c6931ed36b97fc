// The integers of a step, packed into one piece of page-locked memory that one copy takes to the device.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_METADATA_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_METADATA_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// The sizes of a step, and which parts of the plan it runs. Addresses and launches depend on nothing else.
struct StepShape {
  int32_t tokens = 0, rows = 0, seqs = 0;
  std::vector<int32_t> max_blocks;  // [cache groups]: columns of the block tables
  bool states = false;              // whether sequences have states
  bool draws = false;               // whether tokens are drawn
  // The cache group in which an engine with heads keeps features; -1 without heads.
  int32_t feature_group = -1;
  bool features = false;  // whether features are computed
  bool heads = false;     // whether the heads run, and not the model

  auto operator<=>(const StepShape&) const = default;
};

// Where the parts of a step's metadata lie, in bytes from the begin: token ids, positions, starts of
// sequences, context lengths, logit rows, the slots of each cache group, the block tables of each, how tokens
// are drawn, the slots of states, and the slots behind the rows.
struct MetadataLayout {
  explicit MetadataLayout(const StepShape& shape);

  std::vector<size_t> offsets;  // by the numbers of Metadata (cuda_plan.h)
  size_t bytes = 0;
};

// Writes a step in the layout of `shape`, which may be larger. The sequences that the step lacks have one
// token each, at position 0, in block spare[g] of each cache group, and their states in slot spare_state. For
// a step of heads, the slot behind a row is that of the position behind its token, and of block spare[g]
// where the sequence has no block there.
void pack_step(const Step& step, const StepShape& shape, const std::vector<int32_t>& spare,
               int32_t spare_state, int32_t block_size, const MetadataLayout& layout, char* to);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_STEP_METADATA_H_
