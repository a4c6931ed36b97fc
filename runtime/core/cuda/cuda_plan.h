// The plan of an engine of target cuda, cuda/sm_<SM>.plan: kernels as machine code, and for each operation of
// the model the launches that it makes of them. builder/emit/cuda/plan_file.py writes it and describes the
// file.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_PLAN_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/cuda/expressions.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

// Weights, slots, metadata and pages begin at multiples of this many bytes, and kernels rely on it.
inline constexpr size_t kCudaAlignment = 256;
// The most parameters of a kernel.
inline constexpr size_t kMostParameters = 64;

// The types of activations and of matrices.
enum class CudaType : uint32_t { kFloat32 = 0, kBfloat16, kFloat16 };

// What the rows of an activation belong to.
enum class RowKind : uint32_t { kTokens = 0, kRows, kSeqs };

// Metadata of a step, all int32. The slots of each cache group follow, then the block tables of each, then
// how tokens are drawn (draw_fields.h), then, if the model has states, the slots of the sequences' states,
// and last, if the plan has heads, the slots of the positions behind the rows.
enum class Metadata : int64_t { kTokenIds = 0, kPositions, kSeqStarts, kContextLens, kLogitRows, kGroups };

// The numbers of the variables. max_blocks of each cache group follow, then the blocks of each group's pool.
enum class StepVariable : int64_t { kTokens = 0, kRows, kSeqs, kGroups };

struct Place {
  enum Kind : uint32_t { kSlot = 0, kWeight, kMetadata, kPages, kWorkspace, kStates = 7, kAbsent = 255 };
  Kind kind = kAbsent;
  int64_t index = 0;  // pages: layer * 256 + tensor; states: the recurrent layer, in the first slot
  uint64_t offset = 0;

  bool absent() const { return kind == kAbsent; }
};
inline constexpr int64_t kPagesOfALayer = 256;

struct LaunchArgument {
  enum Kind : uint32_t { kPlace, kInteger, kFloat };
  Kind kind;
  Place place;
  uint32_t expression = 0;
  float number = 0;
};

struct LaunchRecord {
  uint32_t kernel;
  uint32_t grid[3];  // expressions
  std::vector<LaunchArgument> arguments;
};

// D = x w^T (+ bias) (+ C): x [m, k] and w [n, k] dense, bias [n] of D's type, C and D [m, n].
struct ProductRecord {
  uint32_t m = 0;  // an expression
  int64_t n = 0, k = 0;
  int64_t stride = 0;             // the numbers from one row of C and D to the next
  CudaType dtype{}, out_dtype{};  // of x and w, and of bias, C and D
  Place x, w, bias, c, d;
};

// What a step starts.
using WorkRecord = std::variant<LaunchRecord, ProductRecord>;

// A node of an operation's decisions. The root is node 0, and each node comes before those that it names.
struct DecisionNode {
  enum Type : uint32_t { kBranch = 0, kWork, kRefused };
  Type type;
  uint32_t condition = 0, yes = 0, no = 0;
  std::vector<WorkRecord> work;
  std::string why;  // of what is refused
};

struct CudaInstruction {
  std::string name;
  std::vector<DecisionNode> decisions;
};

struct KernelRecord {
  enum Type : uint32_t { kPointer = 0, kInt32, kInt64, kFloat32 };
  std::string name;
  uint32_t num_warps = 0, shared_bytes = 0;
  std::vector<Type> parameters;
  std::string code;
};

struct CudaPlan {
  uint32_t sm = 0, vocab_size = 0, max_seq_len = 0, block_size = 0;
  CudaType dtype{};
  uint64_t weights_bytes = 0;
  uint32_t max_tokens = 0, max_rows = 0, max_seqs = 0;
  uint64_t workspace_bytes = 0;

  struct Group {
    uint32_t window, chunked;
  };
  struct KvLayer {
    uint32_t group;
    std::vector<uint64_t> page_bytes;  // of one block, for each of the layer's tensors
  };
  struct Slot {
    RowKind kind;
    uint64_t row_bytes;
  };
  struct Weight {
    uint64_t offset, bytes;
  };
  std::vector<Group> groups;
  std::vector<KvLayer> layers;
  std::vector<uint64_t> states;  // of each recurrent layer: the bytes of one sequence's state
  std::vector<Slot> slots;
  std::vector<Weight> weights;
  std::vector<KernelRecord> kernels;
  std::vector<Expression> expressions;
  std::vector<CudaInstruction> instructions;
  uint32_t logits_slot = 0;
  // The instructions from first_draw on draw tokens from the logits. The runtime leaves them out of steps
  // that draw none.
  static constexpr uint32_t kDrawsNone = UINT32_MAX;
  uint32_t first_draw = kDrawsNone, tokens_slot = 0;

  // The parts behind that: the instructions from first_feature on compute the features that heads read, and
  // those from first_head on are the heads. The runtime starts each part where it is wanted.
  static constexpr uint32_t kNoHeads = UINT32_MAX;
  uint32_t first_feature = kNoHeads, first_head = 0;
  uint32_t draft_logits_slot = 0;
  uint32_t feature_layer = 0,
           feature_width = 0;  // the layer whose one tensor holds features, and their columns
  bool heads_attend = false;   // whether heads have keys and values, in the layer's group
  // The instructions from there on draw tokens from the heads' logits.
  uint32_t first_draft_draw = kDrawsNone, draft_tokens_slot = 0;

  bool draws() const { return first_draw != kDrawsNone; }
  bool heads() const { return first_feature != kNoHeads; }
  bool draws_drafts() const { return heads() && first_draft_draw != kDrawsNone; }
  size_t heads_end() const { return draws_drafts() ? first_draft_draw : instructions.size(); }
  // Returns where the instructions of the model end, and those that draw tokens.
  size_t model_end() const { return draws() ? first_draw : draws_end(); }
  size_t draws_end() const { return heads() ? first_feature : instructions.size(); }
  int32_t feature_group() const { return heads() ? static_cast<int32_t>(layers[feature_layer].group) : -1; }
  size_t variables() const { return static_cast<size_t>(StepVariable::kGroups) + 2 * groups.size(); }
  size_t metadata() const {
    return static_cast<size_t>(Metadata::kGroups) + 2 * groups.size() + (states.empty() ? 1 : 2) + heads();
  }
  uint64_t state_bytes() const;  // of one sequence, over all recurrent layers
  ModelFacts facts() const;
};

// Throws Error{"EngineError"} that names the file if it breaks a rule of the format. Every number that names
// something is in range in what is returned.
CudaPlan read_cuda_plan(const std::string& path);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_PLAN_H_
