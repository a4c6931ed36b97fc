// Runs a plan on the processor: one instruction after the other, each on all threads of a team.
#ifndef TENSORWRIGHT_RUNTIME_CORE_CPU_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_CPU_EXECUTOR_H_

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/base/arena.h"
#include "runtime/core/base/mapped_file.h"
#include "runtime/core/base/populate.h"
#include "runtime/core/base/thread_team.h"
#include "runtime/core/base/timeline.h"
#include "runtime/core/executor/adapters.h"
#include "runtime/core/executor/numa.h"
#include "runtime/core/executor/profile.h"
#include "runtime/core/executor/weight_reads.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/ops/kept_blocks.h"
#include "runtime/core/ops/kv_storage.h"
#include "runtime/core/ops/op.h"
#include "runtime/core/ops/state_storage.h"
#include "runtime/core/ops/step_check.h"
#include "runtime/core/plan/plan.h"

namespace tensorwright {

struct CpuExecutorOptions {
  int threads = 0;  // 0: one per usable processor
  LoadMode load = LoadMode::map;
  size_t populate = 0;  // bytes whose page faults are taken before the first step, see populate.h
  Numa numa = Numa::automatic;
  WorkCut cut = {};
  // The processors of a rank that shares the machine with others; empty: those of the process.
  std::vector<int> processors = {};
  // The team of another executor, which never runs at the same time; null: a team of its own. Two teams would
  // wait for each other's spinning threads.
  std::shared_ptr<ThreadTeam> team = nullptr;
  // What gets the spans of instructions and threads; null: nothing is kept.
  std::shared_ptr<Timeline> timeline = nullptr;
  // Where this executor stands among the ranks of a parallel engine.
  RankPlace place = {};
  // The adapters that may live at once, and the most rows of the first matrix of one product of an adapter.
  int32_t max_adapters = 0, max_adapter_rank = 0;
};

// Computes a step on the calling thread and the team's threads. Two threads must not use it at once.
class CpuExecutor : public Executor {
 public:
  // topology: for tests; null: the machine's. Throws Error{"EngineError"} for files that are missing or
  // wrong, {"IsaError"},
  // {"InvalidOptionError"}.
  CpuExecutor(const std::string& plan_path, const std::string& weights_path,
              const CpuExecutorOptions& options, const Topology* topology = nullptr);

  const ModelFacts& facts() const override { return facts_; }
  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) override;
  LogitRows run(const Step& step) override;
  void want_features(bool wanted) override { features_wanted_ = wanted; }
  FeatureRows features() const override { return features_; }
  DraftRows run_draft(const Step& step, const float* features) override;
  void copy_block(int32_t group, int32_t from, int32_t to) override;
  void copy_state(int32_t from, int32_t to) override;
  std::span<const uint8_t> gone_blocks(int32_t group, int32_t slot) const override;
  void read_block(int32_t group, int32_t block, char* to) const override;
  void write_block(int32_t group, int32_t block, const char* from) override;
  void read_state(int32_t slot, char* to) const override;
  void write_state(int32_t slot, const char* from) override;

  void begin_thread() override { team_->pin_caller(); }
  int threads() const override { return team_->threads(); }
  void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) override;
  // The kernels in use, and why better ones were refused.
  const std::vector<DispatchChoice>& dispatch() const { return dispatch_; }
  Profile& profile() { return profile_; }
  const std::shared_ptr<ThreadTeam>& team() const { return team_; }
  // The adapters of this executor. Their make() may be called by any thread.
  const AdapterProducts& adapters() const { return adapters_; }
  bool owns(const Adapter& adapter) const override { return adapters_.owns(adapter); }
  WeightReads weight_reads() const;
  // Returns when the page faults are taken that CpuExecutorOptions::populate asks for.
  void wait_for_memory() { populator_.wait(); }

 private:
  void check_blocks(const char* call, int32_t group, std::initializer_list<int32_t> blocks) const;
  void check_slots(const char* call, std::initializer_list<int32_t> slots) const;
  void populate();
  void run_operation(StepView& view, size_t index);
  void run_operations(StepView& view, size_t begin, size_t end);
  void run_watched(StepView& view, size_t end);
  void keep_spans(size_t instruction, int32_t tokens, int64_t begin, int64_t end);

  const Plan plan_;
  const ModelFacts facts_;
  const std::shared_ptr<ThreadTeam> team_;
  const MappedFile weights_;
  KvStorage kv_;
  StateStorage states_;
  KeptBlocks kept_;
  std::vector<DispatchChoice> dispatch_;
  std::vector<std::unique_ptr<Operation>> operations_;  // one per instruction
  AdapterProducts adapters_;
  Profile profile_;
  const std::shared_ptr<Timeline> timeline_;  // null: nothing is kept
  const BufferRef logits_;                    // empty in a stage that computes no logits

  // Of a plan with heads: where they begin, and the buffers of the model's features and of the heads'
  // results.
  struct Heads {
    size_t begin;
    BufferRef model, logits, hidden;
  };
  std::unique_ptr<const Heads> heads_;  // null without heads
  const size_t logit_end_;              // the number of operations that compute the logits
  bool features_wanted_ = false;
  FeatureRows features_;  // of the last run()

  std::unique_ptr<StepChecker> checker_;        // null before allocate()
  std::unique_ptr<StepChecker> draft_checker_;  // null before allocate(), and without heads
  Arena token_arena_, row_arena_, scratch_;
  const size_t populate_bytes_;
  Populator populator_;  // uses the arenas, the cache and the states, so it must be destroyed before them
};

std::unique_ptr<Executor> make_cpu_executor(const std::string& plan_path, const std::string& weights_path,
                                            const CpuExecutorOptions& options);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_CPU_EXECUTOR_H_
