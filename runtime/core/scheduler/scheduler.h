// Decides which tokens of which sequences the next step computes. It holds no tensors, and looks at the clock
// only to see how long sequences have waited (ageing_s).
//
// All sequences are in one order: higher priority first, and within a priority the older first. In a step,
// every running sequence that decodes gets one token. Then prefill chunks fill the token budget, in that
// order. Then waiting sequences are admitted, the first one first, as long as there are blocks for all tokens
// that a sequence has. When a running sequence finds no block, the last running one is preempted: it goes
// back to its place in the queue, keeps its tokens, and computes them again. No sequence is preempted because
// one of higher priority waits.
//
// A request of n completions starts as one sequence, which keeps places for the others. fork() makes the
// others once the prompt is computed. They share the blocks of the first, and copy the last one when they
// write to it. From then on they are sequences like any other, right behind the first in the order.
//
// A sequence sits out when its tokens are all computed and its next token is not there yet: no step has it
// until it gets a token. It keeps its place and its blocks, but can be preempted like any other. If none of
// the sequences that could go on finds a block, those that sit out are preempted, the last one first.
//
// The beams of a search are sequences too. A beam sits out, and is parked, until all beams of its request are
// computed; a parked beam that was preempted stays in the queue, and others pass it. follow() makes one beam
// go on as another, with the same blocks.
//
// If the model has recurrent layers, a running sequence also has a slot for its states (kv_blocks.h). There
// are as many slots as max_seqs, so a sequence that finds a place finds a slot. States cannot be computed
// again from the middle: preemption gives the slot back, and a step that may have failed midway has spoilt
// the states of its sequences, which then start again from the queue, behind the longest prefix with a
// snapshot. Chunks end where a snapshot is taken: at most twice after each start.
//
// A waiting sequence that could start, as it has a place and blocks, may have to wait until blocks of its
// prefix come into the cache (on_start): others pass it meanwhile, as far as they leave the blocks for all
// its tokens, and it is the first again when they have come. A sequence asks once for each start. Blocks that
// others hold for what is on its way (on_lack) give way before anybody is preempted, and to a sequence that
// would run alone.
//
// The fairness bound holds for sequences that do not sit out; one that does is later by the steps that it
// misses. The first of the running sequences is never preempted and progresses in every step: by one token
// when it decodes, and by at least c = min(max_chunk, max_tokens - max_seqs + 1) tokens when it prefills (or
// by all that are left, or to the next snapshot or multiple of chunk_stop). With prompt_logprobs, c is
// max_prompt_rows if that is less. So it ends at most S = ceil((prompt + max_tokens) / c) + max_tokens steps,
// and 2 more if snapshots are kept and one for each multiple of chunk_stop, after it became the first,
// however often it was preempted before. No waiting sequence starts before the first waiting one. So a
// sequence starts at the latest one step after the sum of S over the sequences that were running or before it
// in the order when it arrived (each completion counts), and over those of higher priority that arrived while
// it waited: these can keep it waiting as long as they keep arriving. No other sequence that arrives later
// delays it; with equal priorities, none at all. (debug_preempt_every breaks this on purpose.)
//
// Tenants share the engine when they wait. Of the waiting sequences, those of the highest priority start
// first; among these the ones that ran before and were preempted; then the tenant that has had the least
// service for its weight (fair_share.h); then the older. A sequence pays for its prompt when it starts, but
// not for what the prefix cache has, and for each further token when it is computed. With one tenant and
// without ageing this is the order above. While two tenants have sequences waiting, what they have had for
// their weights differs by no more than the tokens of the sequences that run, and the longest prompt: who
// runs is not stopped for another's sake.
//
// With ageing_s, a waiting sequence rises by one priority for each ageing_s that it has waited, up to the
// highest priority that waits, and keeps that priority once it starts. So after (highest - its own) *
// ageing_s no sequence that arrives later goes before it for its priority: then it waits for its turn as a
// sequence of the highest priority does.
//
// With chunk_multiple, a chunk ends at a multiple of that position or at the end of the sequence's tokens.
// What does not reach the next multiple waits for a step that has room, so what a row of a prompt is computed
// with depends on its position alone. A pace that is less than one multiple lets one through, a hit of the
// prefix cache ends at a multiple, and a draft ends before it would cross one. c of the bound above is then
// rounded down to a multiple.
//
// With chunk_stop, no chunk crosses a multiple of that position, where the executor forgets blocks of a
// sequence.
//
// With a pace (set_pace), a step that decodes computes at most so many other tokens, and no more completions
// start than it says. c of the bound above is then the pace's prefill, if that is less.
//
// A decode may be extended by a draft: tokens that are computed as if they had been drawn (extend). commit()
// counts only the token before them. The engine then draws its own token from each row; accept() counts a
// token of the draft that was drawn too, and settle() takes the rest back. The cache never remembers a token
// that was not drawn.
//
// plan() is a proposal: commit() makes it fact, and rollback() takes it back, so that no token is counted, no
// block is held, and admitted sequences wait again. Preemptions and cache evictions that made room stay; each
// is harmless by itself. After a step that ran, rollback() also sends the sequences with states to the queue.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_
#define TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/scheduler/fair_share.h"
#include "runtime/core/scheduler/sequence.h"
#include "runtime/core/scheduler/step_pace.h"

namespace tensorwright {

struct SchedulerLimits {
  int32_t max_seqs = 1;    // sequences that run at once
  int32_t max_tokens = 1;  // tokens in a step; at least max_seqs
  int32_t max_chunk = 0;   // tokens of one sequence's prefill in a step; 0: no cap
  // For tests: every n-th step preempts a running sequence that is drawn by debug_seed, if one has grown
  // since its last start, or pools and has started once.
  int32_t debug_preempt_every = 0;
  uint64_t debug_seed = 0;
  // Prompt positions in a step whose logits are reported (prompt_logprobs), besides a row per sequence that
  // samples.
  int32_t max_prompt_rows = 1;
  double ageing_s = 0;  // seconds of waiting that are worth one priority; 0: none
  // A chunk ends at a multiple of this position, or at the end of the tokens that the sequence has; 0:
  // anywhere. max_tokens - max_seqs + 1, max_prompt_rows and, if it is a cap, max_chunk must be no less.
  int32_t chunk_multiple = 0;
  int32_t chunk_stop = 0;  // no chunk crosses a multiple of this position; 0: there is none
};

struct PlannedChunk {
  Sequence* sequence;
  int32_t tokens;         // computed in this step, from sequence->computed on
  int32_t prompt_rows;    // prompt positions among these whose logits are reported
  int32_t blocks_before;  // per group, for rollback
  bool admitted;          // came from the waiting queue in this plan
  bool decode;
  int32_t drafted = 0;  // tokens of sequence->draft that are computed behind `tokens`
  bool forced = false;  // whether a grammar forces them
  // Of an admitted sequence, for rollback: sequence->charged before, and the tokens that were charged.
  int32_t charged_before = 0, paid = 0;
  // Returns whether the next token is drawn from this chunk's logits; valid before commit().
  bool last() const { return tokens == sequence->pending(); }
};

struct StepPlan {
  std::vector<PlannedChunk> chunks;
  int32_t tokens = 0;  // with those of drafts
  int32_t prompt_rows = 0;
  int32_t decodes = 0;  // chunks that decode
  int32_t drafted = 0;

  int32_t prefill() const { return tokens - decodes - drafted; }
};

struct SchedulerStats {
  int64_t steps = 0, rolled_back = 0, preemptions = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
  int64_t prefix_lookup_tokens = 0, prefix_hit_tokens = 0;  // counted at starts and restarts
  // Of sequences that were preempted, when they start again: computed tokens that the cache has, and those
  // that are computed once more.
  int64_t resumed_kept_tokens = 0, resumed_computed_tokens = 0;
  int64_t snapshot_hits = 0;             // starts and restarts behind a snapshot of states
  int64_t publishes_without_memory = 0;  // commits that found no memory to publish: the prefix cache
                                         // remembers those blocks later, or never
  int64_t max_waste_slots = 0;           // the largest waste of any sequence after any step; below block_size
};

class Scheduler {
 public:
  Scheduler(KvBlocks& kv, const SchedulerLimits& limits);

  // If it throws, nothing has changed, and the sequence is destroyed.
  void add(std::unique_ptr<Sequence> sequence);
  // Removes a sequence and frees its blocks at once; returns null if no such sequence is alive. Must not be
  // called between plan() and commit() or rollback().
  std::unique_ptr<Sequence> remove(int64_t id, int32_t completion = 0);
  bool preempt(int64_t id, int32_t completion = 0);  // false unless the sequence is running
  // Makes the other completions of a running sequence, whose tokens must all be computed: they have the same
  // tokens in the same blocks. The pointers are valid until the sequences are removed. If it throws, nothing
  // has changed.
  std::vector<Sequence*> fork(Sequence& sequence);
  // Gives `to` the tokens and blocks of `from`, another sequence of its request whose tokens are all computed
  // if it runs. Unless both run, `to` waits. Throws what the copy of states throws; then `to` has no blocks.
  void follow(Sequence& to, const Sequence& from);
  // Sends a sequence to the queue, if it runs, and parks it.
  void put_aside(Sequence& sequence);

  // Sets the function that says whether a sequence that could start must wait for blocks of its prefix. It
  // must not throw. came() ends the wait.
  void on_start(std::function<bool(const Sequence&)> waits) { waits_ = std::move(waits); }
  // Sets the function that is called where a sequence lacks blocks: it gives back what is held for nobody who
  // runs, and returns whether that was anything. It must not throw.
  void on_lack(std::function<bool()> gives) { gives_ = std::move(gives); }
  void came(int64_t id, int32_t completion);
  // Ends the wait of all sequences.
  void stop_fetching();
  bool fetches(int64_t id, int32_t completion) const;
  // Returns whether no sequence can go on before blocks of a prefix have come.
  bool only_fetches() const;
  // Holds from the next plan on.
  void set_pace(const Pace& pace) { pace_ = pace; }

  // Throws what the copy of a block throws, and bad_alloc, after a rollback.
  StepPlan plan();
  // Plans only this sequence's share of a step; the plan is empty if the sequence must wait. Throws as plan()
  // does.
  StepPlan plan_only(int64_t id, int32_t completion = 0);
  // Returns how many more tokens a step may have.
  int32_t token_room(const StepPlan& plan) const { return limits_.max_tokens - plan.tokens; }
  // Adds a draft to a chunk of the plan that decodes: as many of its tokens as fit the step and the blocks
  // that are there. Nobody is preempted for it. If there is no memory, the chunk stays as it is.
  // forced: whether a grammar forces the draft; it does not count as proposed then.
  void extend(StepPlan& plan, size_t chunk, std::span<const int32_t> draft, bool forced = false);
  // Makes room for up to `count` positions behind a chunk that decodes, before anybody knows what will be
  // there. Returns for how many; extend() gives back what it does not take.
  int32_t reserve(const StepPlan& plan, size_t chunk, int32_t count);
  // The next token of the draft has turned out to be the sequence's last token: it is computed. Neither
  // accept() nor settle() fails for lack of memory.
  void accept(Sequence& sequence);
  // Forgets what is left of the draft, and gives back the blocks that nothing but the draft needed.
  void settle(Sequence& sequence);
  // Neither commit() nor rollback() fails for lack of memory. ran: whether the step may have been computed in
  // part.
  void commit(const StepPlan& plan);
  void rollback(StepPlan& plan, bool ran = false);
  // Takes the sequence's chunk, if there is one, out of a plan that may have been computed, as rollback()
  // takes back all.
  void take_back(StepPlan& plan, const Sequence& sequence);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int64_t waste_slots() const;  // slots without a token in the blocks of all running sequences
  const SchedulerStats& stats() const { return stats_; }
  void for_each(const std::function<void(const Sequence&)>& visit) const;
  // Throws InvariantError unless the counts of the blocks agree with what the sequences hold, and others, who
  // hold elsewhere(group) blocks. Must not be called between plan() and commit() or rollback().
  void check(const std::function<int64_t(int32_t group)>& elsewhere = nullptr) const;

 private:
  using Queue = std::vector<std::unique_ptr<Sequence>>;  // sequences in their order

  void make_room_for(size_t sequences);
  bool runs(const Sequence& sequence) const;
  void plan_all(StepPlan& plan);
  void plan_each(StepPlan& plan);
  bool preempt_idle();
  bool plan_running(Sequence& sequence, StepPlan& plan, bool may_preempt);
  bool must_wait(Sequence& sequence);
  enum class Admission { kStarts, kWaits, kStaysBehind };
  Admission admit(size_t waiting_index, StepPlan& plan, bool may_wait);
  bool has_place_for(const Sequence& sequence) const;
  bool has_blocks(const Sequence& sequence, const KvBlocks::Match& match);
  int32_t take_blocks(Sequence& sequence, const KvBlocks::Match& match, const StepPlan& plan);
  int32_t budget(const StepPlan& plan, const Sequence& sequence) const;
  int32_t rounded(const Sequence& sequence, int32_t chunk) const;
  KvBlocks::Match match(const Sequence& sequence) const;
  int32_t places() const;
  bool has_blocks_for(const Sequence& sequence, const KvBlocks::Match& match, int32_t group) const;
  int32_t outstanding_blocks(int32_t group) const;
  int32_t promised_blocks(const Sequence& other_than, int32_t group) const;
  int64_t waste(const Sequence& sequence) const;
  void append(StepPlan& plan, Sequence& sequence, int32_t tokens, int32_t blocks_before, bool admitted);
  Queue::iterator next_to_start();
  int32_t aged_priority(const Sequence& sequence, int32_t highest, Clock::time_point now) const;
  void charge(Sequence& sequence);
  void charge_start(PlannedChunk& chunk, int32_t remembered);
  void preempt_last(StepPlan& plan);
  void take_back(const PlannedChunk& chunk, bool ran);
  void send_back(Sequence& sequence);
  void remember(Sequence& sequence);
  void move_to_waiting(Queue::iterator running);
  void debug_preempt();

  KvBlocks& kv_;
  SchedulerLimits limits_;
  std::function<bool(const Sequence&)> waits_;  // empty: no sequence waits
  std::function<bool()> gives_;                 // empty: nobody holds blocks that could give way
  Queue running_, waiting_;  // each has room for the sequences of both, so that moving one takes no memory
  FairShare shares_;
  Pace pace_;
  uint64_t arrivals_ = 0;
  uint64_t plans_ = 0;
  SchedulerStats stats_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SCHEDULER_H_
