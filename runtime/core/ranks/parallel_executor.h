// Runs steps on all ranks of a parallel engine. Rank 0 schedules: its executor tells the others what to do,
// and does its own part. The others follow.
#ifndef TENSORWRIGHT_RUNTIME_CORE_RANKS_PARALLEL_EXECUTOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_RANKS_PARALLEL_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/base/timeline.h"
#include "runtime/core/interface/executor.h"
#include "runtime/core/interface/ranks.h"
#include "runtime/core/ranks/step_text.h"

namespace tensorwright {

// What one rank computes of each step: its part of the plan, microbatch after microbatch.
//
// A step is cut into microbatches where the engine has stages: stage s computes microbatch m while stage s +
// 1 computes m - 1. With p stages and m microbatches each rank idles (p - 1) / (m + p - 1) of the time
// (GPipe, Huang et al. 2019, section 2.3).
class RankWork {
 public:
  // A microbatch has at least so many tokens: with fewer, products are bound by the reading of weights, which
  // every microbatch repeats.
  static constexpr int32_t kLeastTokens = 32;

  RankWork(std::unique_ptr<Executor> own, RankPlace place) : own_(std::move(own)), place_(place) {}

  Executor& own() const { return *own_; }
  const RankPlace& place() const { return place_; }
  // Returns into how many microbatches a step of so many tokens is cut.
  int32_t microbatches(int32_t tokens) const;
  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots);
  // Computes a step. The logits of its rows are there on rank 0. timeline: on rank 0, what gets a span for
  // every microbatch of every stage; null keeps none. timed: whether rank 0 has one. On several machines the
  // clocks of their spans differ.
  LogitRows run(const Step& step, bool timed, Timeline* timeline = nullptr);
  void copy_block(int32_t group, int32_t from, int32_t to);
  void copy_state(int32_t from, int32_t to);

 private:
  Step own_part(Step step) const;
  void tell_times(const std::vector<int64_t>& times, Timeline* timeline) const;

  const std::unique_ptr<Executor> own_;
  const RankPlace place_;
  std::vector<float> logits_;  // of all microbatches
};

class ParallelExecutor : public Executor {
 public:
  // ranks: what `place` names, which must live as long. fingerprint: a number that all ranks must have alike,
  // which says what engine they have opened. Throws RankError if they do not agree.
  ParallelExecutor(std::shared_ptr<Ranks> ranks, std::unique_ptr<Executor> own, RankPlace place,
                   uint64_t fingerprint, std::shared_ptr<Timeline> timeline = nullptr);
  ~ParallelExecutor() override { ParallelExecutor::end_thread(); }

  const ModelFacts& facts() const override { return facts_; }
  void allocate(const std::vector<int32_t>& blocks, int32_t max_tokens, int32_t max_rows, int32_t max_seqs,
                int32_t state_slots) override;
  void begin_thread() override { work_.own().begin_thread(); }
  void end_thread() noexcept override;  // lets the others end
  LogitRows run(const Step& step) override;
  void copy_block(int32_t group, int32_t from, int32_t to) override;
  void copy_state(int32_t from, int32_t to) override;
  int threads() const override { return work_.own().threads(); }
  void run_tasks(int tasks, const std::function<void(int task, int thread)>& fn) override {
    work_.own().run_tasks(tasks, fn);
  }

 private:
  void tell(const IntWriter& command);
  void join_facts(uint64_t fingerprint);
  template <typename Work>
  auto together(Work&& work);

  const std::shared_ptr<Ranks> ranks_;
  RankWork work_;
  const std::shared_ptr<Timeline> timeline_;  // null: nothing is kept
  ModelFacts facts_;
  int32_t steps_ = 0;
  bool ended_ = false;
};

// Does what rank 0 says, until that ends the work. Throws RankError if the ranks cannot go on.
void follow_ranks(std::unique_ptr<Executor> own, RankPlace place, uint64_t fingerprint);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_RANKS_PARALLEL_EXECUTOR_H_
