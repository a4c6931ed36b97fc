// Which tokens of which sequences the next step computes. Holds no tensors and knows no clock.
//
// Sequences are in one order: higher priority first, within a priority the older first. A step: every running
// sequence that decodes gets one token, then prefill chunks fill the token budget in that order, then the
// first of those that wait is admitted, and the next, while blocks for all that it has are in sight. When a
// running sequence finds no block, the last of the running goes back to its place in the queue; its tokens
// are kept and computed again. Nobody is preempted because somebody of higher priority waits.
//
// A request of n completions starts as one sequence, which keeps places for the others. fork() makes them
// once its prompt is computed: they share its blocks, the last by copy on write, and are from then on
// sequences like any other, right behind it in the order.
//
// A sequence whose tokens are all computed, and whose next one is not there, sits out: no step has it until
// somebody gives it a token. It keeps its place and its blocks, but is preempted as any other, and also, the
// last of its kind first, if those that could go on find no block for any of them.
//
// Fairness bound, for those that do not sit out; one that does comes later by the steps it misses. The first
// of the running sequences is never preempted and gets on in every step: by one token when it decodes, by c =
// min(max_chunk, max_tokens - max_seqs + 1) tokens at least when it prefills (sooner if less is left). So it
// is done S = ceil((prompt + max_tokens) / c) + max_tokens steps after it became the first, however often it
// was preempted before. Of those that wait, none starts before the first does. So a sequence starts at the
// latest one step after the sum of S over the sequences that were running or before it in the order when it
// came (each completion counts), and those of higher priority that came while it waited: these can keep it
// waiting as long as they keep coming. Nothing else that comes later delays it; with equal priorities,
// nothing at all. (debug_preempt_every breaks this on purpose.) Wanting prompt_logprobs, a sequence has c =
// max_prompt_rows if that is less.
//
// plan() is a proposal: commit() makes it fact, rollback() takes it back: no token counted, no block held,
// admitted sequences wait again. Preemptions and cache evictions that made room stay: each is harmless by
// itself.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_
#define TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/scheduler/sequence.h"

namespace tensorwright {

struct SchedulerLimits {
  int32_t max_seqs = 1;    // running at once
  int32_t max_tokens = 1;  // in a step; at least max_seqs
  int32_t max_chunk = 0;   // of one sequence's prefill in a step; 0: no cap
  // For tests: every n-th step preempts a running sequence drawn by seed, if one has grown since its last
  // start.
  int32_t debug_preempt_every = 0;
  uint64_t debug_seed = 0;
  // Prompt positions in a step whose logits are wanted (prompt_logprobs), besides a row per sequence that
  // samples.
  int32_t max_prompt_rows = 1;
};

struct PlannedChunk {
  Sequence* sequence;
  int32_t tokens;         // computed in this step, from sequence->computed on
  int32_t prompt_rows;    // of these, prompt positions whose logits are wanted, from sequence->scored on
  int32_t blocks_before;  // per group, for rollback
  bool admitted;          // came from the waiting queue in this plan
  bool decode;
  bool last() const { return tokens == sequence->pending(); }  // before commit: its logits are wanted
};

struct StepPlan {
  std::vector<PlannedChunk> chunks;
  int32_t tokens = 0;
  int32_t prompt_rows = 0;
};

struct SchedulerStats {
  int64_t steps = 0, rolled_back = 0, preemptions = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
  int64_t prefix_lookup_tokens = 0, prefix_hit_tokens = 0;  // at (re)starts
  int64_t publishes_without_memory =
      0;                        // commits of a sequence that the prefix cache remembers later, or never
  int64_t max_waste_slots = 0;  // largest waste of any sequence after any step; below block_size
};

class Scheduler {
 public:
  Scheduler(KvBlocks& kv, const SchedulerLimits& limits);

  // What throws changes nothing, and the sequence is gone.
  void add(std::unique_ptr<Sequence> sequence);
  // Frees its blocks at once; null if no such sequence is alive. Not between plan() and commit() or
  // rollback().
  std::unique_ptr<Sequence> remove(int64_t id, int32_t completion = 0);
  bool preempt(int64_t id, int32_t completion = 0);  // false unless it is running
  // The other completions of a running sequence, which has all its tokens computed: with the same tokens, in
  // the same blocks. Valid until they are removed. What throws changes nothing.
  std::vector<Sequence*> fork(Sequence& sequence);

  // Throws what copying a block throws, and bad_alloc, after a rollback.
  StepPlan plan();
  // Only this sequence's share of a step; empty if it has to wait. Throws as plan() does.
  StepPlan plan_only(int64_t id, int32_t completion = 0);
  // Neither takes memory that it cannot do without.
  void commit(const StepPlan& plan);
  void rollback(StepPlan& plan);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int64_t waste_slots() const;  // slots of held blocks without a token, all running sequences
  const SchedulerStats& stats() const { return stats_; }
  void for_each(const std::function<void(const Sequence&)>& visit) const;
  // Throws InvariantError unless its sequences hold what the blocks say. Not between plan() and commit() or
  // rollback().
  void check() const;

 private:
  using Queue = std::vector<std::unique_ptr<Sequence>>;  // in order

  void make_room_for(size_t sequences);
  void plan_all(StepPlan& plan);
  void plan_each(StepPlan& plan);
  bool preempt_idle();
  bool plan_running(Sequence& sequence, StepPlan& plan, bool may_preempt);
  bool admit(size_t waiting_index, StepPlan& plan);
  int32_t take_blocks(Sequence& sequence, const KvBlocks::Match& match, const StepPlan& plan);
  int32_t budget(const StepPlan& plan, const Sequence& sequence) const;
  int32_t places() const;
  bool has_blocks_for(const Sequence& sequence, const KvBlocks::Match& match, int32_t group) const;
  int32_t outstanding_blocks(int32_t group) const;
  int64_t waste(const Sequence& sequence) const;
  void append(StepPlan& plan, Sequence& sequence, int32_t tokens, int32_t blocks_before, bool admitted);
  void preempt_last(StepPlan& plan);
  void move_to_waiting(Queue::iterator running);
  void debug_preempt();

  KvBlocks& kv_;
  SchedulerLimits limits_;
  Queue running_, waiting_;  // each with room for the sequences of both: moving one takes no memory
  uint64_t arrivals_ = 0;
  uint64_t plans_ = 0;
  SchedulerStats stats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_
