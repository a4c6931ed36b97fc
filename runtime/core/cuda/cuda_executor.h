// Runs a plan of target cuda on one NVIDIA GPU.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/base/recent_map.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/cuda/cuda_plan.h"
#include "runtime/core/cuda/device_memory.h"
#include "runtime/core/cuda/driver.h"
#include "runtime/core/cuda/kernels.h"
#include "runtime/core/cuda/products.h"
#include "runtime/core/cuda/step_buffers.h"
#include "runtime/core/cuda/step_graph.h"
#include "runtime/core/cuda/step_metadata.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/ops/step_check.h"

namespace tensorwright {

struct CudaExecutorOptions {
  int device = 0;
  std::vector<std::string> cublaslt;  // names of the library; the first that is there is taken
  // Whether steps in which every sequence has one token are captured as CUDA graphs, one for each bucket of
  // sequences and blocks, and replayed.
  bool graphs = true;
  // Whether tokens are drawn on the device, from the rows of which nothing else is wanted, if the engine has
  // kernels for that.
  bool draws = true;
  // Whether a step may be started while another one is underway, if tokens are drawn.
  bool ahead = true;
  // The threads that draw tokens, and do other work between steps; 0: one per usable processor.
  int threads = 1;
};

// What run() did.
struct CudaCounters {
  int64_t eager = 0, captured = 0, replayed = 0;  // steps
  // Rows whose tokens were drawn on the device, and those that it left to the host because it was not sure.
  int64_t drawn = 0, undecided = 0;
  int64_t ahead = 0;       // steps that were started while another one was underway
  int64_t head_steps = 0;  // those of run_draft(), which count as steps too
};

// Computes steps on the device. Two threads must not use it at once.
class CudaExecutor : public Executor {
 public:
  // Loads kernels and weights. Throws Error{"EngineError"} for files that are missing or wrong, or code for
  // another GPU, {"MissingDependencyError"}, {"InvalidOptionError"}, {"OutOfMemoryError"}.
  CudaExecutor(const std::string& plan_path, const std::string& weights_path,
               const CudaExecutorOptions& options);
  ~CudaExecutor() override;

  const ModelFacts& facts() const override { return facts_; }
  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) override;
  void begin_thread() override { driver_.bind(); }
  int threads() const override { return team_.threads(); }
  void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) override;
  LogitRows run(const Step& step) override;
  bool draws_tokens() const override { return draws_wanted_ && plan_.draws(); }
  bool runs_ahead() const override { return ahead_wanted_ && draws_tokens(); }
  void start(const Step& step) override;
  LogitRows finish() override;
  void want_features(bool wanted) override { features_wanted_ = wanted; }
  FeatureRows features() const override { return {nullptr, 0, features_there_}; }
  bool draws_drafts() const override { return draws_wanted_ && plan_.draws_drafts(); }
  DraftRows run_draft(const Step& step, const float* features) override;
  void copy_block(int32_t group, int32_t from, int32_t to) override;
  void copy_state(int32_t from, int32_t to) override;
  void read_block(int32_t group, int32_t block, char* to) const override;
  void write_block(int32_t group, int32_t block, const char* from) override;
  void read_state(int32_t slot, char* to) const override;
  void write_state(int32_t slot, const char* from) override;

  const CudaPlan& plan() const { return plan_; }
  const DeviceFacts& device() const { return driver_.facts(); }
  const CudaCounters& counters() const { return counters_; }
  // Returns the bytes of the device that are free now.
  size_t free_memory() const;
  // Returns the bytes that allocate() takes on the device for steps of at most these sizes, without the
  // cache.
  size_t step_bytes(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const;

 private:
  struct PageTensor {
    uint32_t group;
    size_t block_bytes;
    DeviceMemory memory;
  };
  // The addresses of the metadata of a shape.
  struct Prepared {
    StepShape shape;
    MetadataLayout layout;
    ExpressionValues values;
  };
  // Where the results of a step are: of the model, or of the heads.
  struct Results {
    DevicePointer logits;
    size_t row_bytes;  // of a row of logits
    DevicePointer tokens;
    const PinnedMemory& host_logits;
    int32_t columns;
  };

  [[noreturn]] static void refuse(const std::string& what);
  int32_t most_blocks() const;  // columns of the widest block table
  void load_weights(const std::string& path);
  void check_limits(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const;
  size_t draft_rows(int32_t max_rows, int32_t max_seqs) const;
  void check_draft(const Step& step);
  Prepared prepare(const StepShape& shape) const;
  bool decodes(const Step& step) const;
  StepShape shape_of(const Step& step, bool bucket) const;
  Results results_of(const StepBuffers& buffers, bool heads) const;
  void settle() const noexcept;
  size_t first_underway() const { return (next_buffers_ + buffers_.size() - underway_) % buffers_.size(); }
  void begin(const Step& step);
  void begin_parts(const Step& step, const Prepared& prepared, bool graph);
  void check_draws(const char* call, const Step& step, bool able) const;
  void check_references(const Step& step) const;
  void keep_logits(const StepBuffers& last);
  void take_over(const Step& step, const Prepared& prepared);
  void start_step(const Step& step, const Prepared& prepared, bool graph, const StepBuffers& buffers);
  template <typename Wanted>
  bool copy_rows(const StepBuffers& buffers, const Results& from, const Wanted& wanted);
  LogitRows collect(bool heads);
  void take_tokens(const StepBuffers& buffers, const Results& from);
  void start_all(const Prepared& step);
  void start_range(size_t begin, size_t end, const Prepared& step);
  void start(const CudaInstruction& instruction, const Prepared& step);
  void start(const LaunchRecord& launch, const Prepared& step);
  void start(const ProductRecord& record, const Prepared& step);
  void replay(const Prepared& step);
  DevicePointer address(const Place& place, const Prepared& step) const;
  StepShape largest_shape(int32_t max_tokens, int32_t max_rows, int32_t max_seqs) const;
  DevicePointer state_at(int32_t slot) const;
  void check_slots(const char* call, std::initializer_list<int32_t> slots) const;
  void check_blocks(const char* call, int32_t group, std::initializer_list<int32_t> blocks) const;

  const CudaPlan plan_;
  const ModelFacts facts_;
  const bool graphs_wanted_, draws_wanted_, ahead_wanted_;
  ThreadTeam team_;
  const Driver driver_;
  const Stream stream_;
  const Kernels kernels_;
  Products products_;
  DeviceMemory weights_, workspace_, activations_, metadata_;
  DeviceMemory kept_;                 // the logits of a step that is underway while another one is computed
  bool has_kept_ = false;             // whether kept_ has those of the first step that is underway
  std::vector<StepBuffers> buffers_;  // one for each step that may be underway
  size_t next_buffers_ = 0;           // those that the next step takes
  size_t underway_ = 0;               // steps that were started and are not finished
  PinnedMemory draft_logits_;
  std::vector<PageTensor> pages_;     // [layer, tensor], one behind the other
  std::vector<size_t> first_page_;    // [layers]: its first tensor
  std::vector<DevicePointer> slots_;  // [slots]
  DeviceMemory states_;  // [state slots, and one of padding]: for each the states of all recurrent layers
  std::vector<uint64_t> state_offsets_;  // [recurrent layers]: in a slot
  std::vector<int32_t> blocks_, spare_;  // [cache groups]: the pool's blocks, and the one of padding
  StepLimits limits_;
  std::unique_ptr<StepChecker> checker_;        // null before allocate()
  std::unique_ptr<StepChecker> draft_checker_;  // the same, and without heads
  bool features_wanted_ = false;
  bool features_there_ = false;                              // whether the last run() computed features
  RecentMap<StepShape, std::unique_ptr<StepGraph>> graphs_;  // null until the shape's second step
  CudaCounters counters_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CUDA_CUDA_EXECUTOR_H_
