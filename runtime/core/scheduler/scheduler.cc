// Decides what each step computes. It has more than 500 lines because planning, preemption, commit and
// rollback change the same queues and counts of one sequence.
#include "runtime/core/scheduler/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "runtime/core/base/invariants.h"
#include "runtime/core/base/make_room.h"
#include "runtime/core/base/philox.h"

namespace tensorwright {

namespace {

using Queue = std::vector<std::unique_ptr<Sequence>>;

// The queue must have room.
void insert_in_order(Queue& queue, std::unique_ptr<Sequence> sequence) {
  auto after = std::ranges::find_if(queue, [&](const auto& other) { return sequence->before(*other); });
  queue.insert(after, std::move(sequence));
}

Queue::iterator find(Queue& queue, int64_t id, int32_t completion) {
  return std::ranges::find_if(
      queue, [&](const auto& sequence) { return sequence->id == id && sequence->completion == completion; });
}

// Returns how many blocks of a group the forks of a sequence need: each needs one for its first token, a copy
// of the prompt's last block or a new block behind it.
int32_t blocks_of_forks(const Sequence& sequence) {
  return sequence.sampling->max_tokens > 1 ? sequence.forks : 0;
}

bool can_start(const std::unique_ptr<Sequence>& sequence) { return !sequence->parked && !sequence->fetching; }

std::unique_ptr<Sequence> take(Queue& queue, Queue::iterator at) {
  std::unique_ptr<Sequence> sequence = std::move(*at);
  queue.erase(at);
  return sequence;
}

}  // namespace

Scheduler::Scheduler(KvBlocks& kv, const SchedulerLimits& limits) : kv_(kv), limits_(limits) {
  if (limits.max_seqs < 1 || limits.max_tokens < limits.max_seqs || limits.max_chunk < 0 ||
      limits.max_prompt_rows < 1 || !(limits.ageing_s >= 0)) {
    throw std::logic_error(
        "[scheduler] limits must hold 1 <= max_seqs <= max_tokens, max_chunk >= 0, max_prompt_rows >= 1 and "
        "ageing_s >= 0");
  }
  const int32_t least = limits.chunk_multiple, room = limits.max_tokens - limits.max_seqs + 1;
  if (least < 0 || least > room || (limits.max_chunk > 0 && least > limits.max_chunk) ||
      least > limits.max_prompt_rows || least % kv.block_size() != 0) {
    throw std::logic_error(
        "[scheduler] chunk_multiple must be a multiple of the block size, at most max_tokens - max_seqs + 1, "
        "max_prompt_rows and max_chunk");
  }
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  make_room_for(1);
  shares_.join(sequence->sampling->tenant);
  sequence->arrival = ++arrivals_;
  sequence->priority = sequence->sampling->priority;
  insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::make_room_for(size_t sequences) {
  make_room(running_, waiting_.size() + sequences);
  make_room(waiting_, running_.size() + sequences);
}

std::unique_ptr<Sequence> Scheduler::remove(int64_t id, int32_t completion) {
  for (Queue* queue : {&running_, &waiting_}) {
    auto at = find(*queue, id, completion);
    if (at == queue->end()) continue;
    kv_.release((*at)->blocks);
    shares_.leave((*at)->sampling->tenant);
    return take(*queue, at);
  }
  return nullptr;
}

std::vector<Sequence*> Scheduler::fork(Sequence& sequence) {
  std::vector<Sequence*> forks;
  Queue made;
  make_room_for(static_cast<size_t>(sequence.forks));
  for (int32_t completion = 1; completion <= sequence.forks; ++completion) {
    auto fork = std::make_unique<Sequence>();
    static_cast<SequenceState&>(*fork) = sequence;
    fork->blocks = kv_.fork(sequence.blocks);
    fork->completion = completion;
    fork->forks = 0;
    forks.push_back(fork.get());
    made.push_back(std::move(fork));
  }
  // Nothing throws from here on, so either all forks run or none.
  for (size_t i = 0; i < made.size(); ++i) shares_.join_again(sequence.sampling->tenant);
  auto running = static_cast<std::ptrdiff_t>(running_.size());
  running_.resize(running_.size() + made.size());
  std::ranges::move(made, running_.begin() + running);
  auto behind = std::next(find(running_, sequence.id, sequence.completion));
  std::rotate(behind, running_.begin() + running, running_.end());
  sequence.forks = 0;
  return forks;
}

bool Scheduler::runs(const Sequence& sequence) const {
  return std::ranges::any_of(running_, [&](const auto& other) { return other.get() == &sequence; });
}

void Scheduler::follow(Sequence& to, const Sequence& from) {
  SequenceState state = from;
  state.completion = to.completion;
  state.forks = 0;
  state.computed = 0;
  const bool both = runs(to) && runs(from);
  kv_.release(to.blocks);  // before the fork, which needs its slot of states
  static_cast<SequenceState&>(to) = std::move(state);
  if (both) {
    to.blocks = kv_.fork(from.blocks);
    to.computed = from.computed;
  } else if (runs(to)) {
    send_back(to);
  }
}

void Scheduler::put_aside(Sequence& sequence) {
  if (runs(sequence)) send_back(sequence);
  sequence.parked = true;
}

StepPlan Scheduler::plan() {
  StepPlan plan;
  debug_preempt();
  try {
    plan_all(plan);
  } catch (...) {
    rollback(plan);
    throw;
  }
  return plan;
}

void Scheduler::plan_all(StepPlan& plan) {
  do {
    plan_each(plan);
  } while (plan.chunks.empty() && preempt_idle());
}

// Preempts the last sequence that sits out, so that sequences that found no block get its blocks: running
// ones, or waiting ones if all running ones sit out; then only a parked one is preempted, because the others
// wait for nothing that these sequences do. Returns false if that helps nobody.
bool Scheduler::preempt_idle() {
  auto sits_out = [](const auto& sequence) { return sequence->pending() == 0; };
  const bool all = std::ranges::all_of(running_, sits_out);
  if (all && std::ranges::none_of(waiting_, can_start)) return false;
  auto last = std::ranges::find_if(running_.rbegin(), running_.rend(), [&](const auto& sequence) {
    return sits_out(sequence) && (sequence->parked || !all);
  });
  if (last == running_.rend()) return false;
  move_to_waiting(std::prev(last.base()));
  return true;
}

void Scheduler::plan_each(StepPlan& plan) {
  // Preemption takes from the back, so an index stays valid.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->pending() == 1) plan_running(*running_[i], plan, true);
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->pending() > 1) plan_running(*running_[i], plan, true);
  }
  // A sequence that was preempted just now does not fit again, because it needs more blocks than it gave up.
  while (true) {
    const auto first = next_to_start();
    if (first == waiting_.end()) return;
    if (admit(static_cast<size_t>(first - waiting_.begin()), plan, true) == Admission::kStaysBehind) return;
  }
}

// Asks whether a sequence that could start must wait for blocks of its prefix. The places of those that
// wait are kept. A beam that was preempted does not ask, because the others of its search wait for it.
bool Scheduler::must_wait(Sequence& sequence) {
  if (!waits_ || sequence.asked || (sequence.sampling->beams() && sequence.generated() > 0)) return false;
  int32_t taken = places();
  for (const auto& other : waiting_) taken += other->fetching ? other->places() : 0;
  if (taken + sequence.places() > limits_.max_seqs) return false;
  sequence.asked = true;
  return sequence.fetching = waits_(sequence);
}

void Scheduler::came(int64_t id, int32_t completion) {
  if (const auto at = find(waiting_, id, completion); at != waiting_.end()) (*at)->fetching = false;
}

void Scheduler::stop_fetching() {
  for (const auto& sequence : waiting_) sequence->fetching = false;
}

bool Scheduler::fetches(int64_t id, int32_t completion) const {
  return std::ranges::any_of(waiting_, [&](const auto& sequence) {
    return sequence->id == id && sequence->completion == completion && sequence->fetching;
  });
}

bool Scheduler::only_fetches() const {
  return running_.empty() && std::ranges::none_of(waiting_, can_start) &&
         std::ranges::any_of(waiting_, [](const auto& sequence) { return sequence->fetching; });
}

StepPlan Scheduler::plan_only(int64_t id, int32_t completion) {
  StepPlan plan;
  try {
    if (auto at = find(running_, id, completion); at != running_.end()) {
      plan_running(**at, plan, false);
    } else if (at = find(waiting_, id, completion); at != waiting_.end() && can_start(*at)) {
      admit(static_cast<size_t>(at - waiting_.begin()), plan, false);
    }
  } catch (...) {
    rollback(plan);
    throw;
  }
  return plan;
}

// Returns the waiting sequence that starts first, or the end if none can.
Scheduler::Queue::iterator Scheduler::next_to_start() {
  const auto first = std::ranges::find_if(waiting_, can_start);
  if (first == waiting_.end() || (shares_.alone() && limits_.ageing_s == 0)) return first;
  const int32_t highest = (*first)->priority;
  const Clock::time_point now = limits_.ageing_s > 0 ? Clock::now() : Clock::time_point();
  const auto rank = [&](const Sequence& sequence) {
    return std::tuple(-int64_t{aged_priority(sequence, highest, now)}, sequence.charged == 0,
                      shares_.served(sequence.sampling->tenant), sequence.arrival, sequence.completion);
  };
  auto best = first;
  auto least = rank(**first);
  for (auto at = std::next(first); at != waiting_.end(); ++at) {
    if (!can_start(*at)) continue;
    if (const auto mine = rank(**at); mine < least) best = at, least = mine;
  }
  return best;
}

// Returns the priority of a sequence with what its wait is worth; at most `highest`.
int32_t Scheduler::aged_priority(const Sequence& sequence, int32_t highest, Clock::time_point now) const {
  if (limits_.ageing_s == 0 || sequence.priority >= highest) return sequence.priority;
  const double waited = std::chrono::duration<double>(now - sequence.arrived).count();
  const double missing = static_cast<double>(highest) - sequence.sampling->priority;
  const double risen = std::floor(std::max(0.0, waited) / limits_.ageing_s);
  if (risen >= missing) return highest;
  return std::max(sequence.priority, sequence.sampling->priority + static_cast<int32_t>(risen));
}

// Charges the tenant for what was computed of the sequence and is not charged yet.
void Scheduler::charge(Sequence& sequence) {
  const int32_t tokens = sequence.computed - sequence.charged;
  if (tokens <= 0) return;
  shares_.charge(sequence.sampling->tenant, tokens, sequence.sampling->tenant_weight);
  sequence.charged = sequence.computed;
}

// Charges the tenant for all tokens that a sequence has when it starts, but for those that were remembered:
// so the next one to start in the same step is chosen by what this one will take.
void Scheduler::charge_start(PlannedChunk& chunk, int32_t remembered) {
  Sequence& sequence = *chunk.sequence;
  chunk.charged_before = sequence.charged;
  sequence.charged = std::max(sequence.charged, remembered);
  chunk.paid = std::max(0, sequence.size() - sequence.charged);
  sequence.charged += chunk.paid;
  shares_.charge(sequence.sampling->tenant, chunk.paid, sequence.sampling->tenant_weight);
}

int32_t Scheduler::budget(const StepPlan& plan, const Sequence& sequence) const {
  int32_t chunk = sequence.pending_within(limits_.max_prompt_rows - plan.prompt_rows);
  chunk = std::min({chunk, limits_.max_tokens - plan.tokens, sequence.until_snapshot()});
  if (limits_.chunk_stop > 0)
    chunk = std::min(chunk, limits_.chunk_stop - sequence.computed % limits_.chunk_stop);
  if (pace_.prefill > 0 && plan.decodes > 0 && !sequence.decodes()) {
    // A pace below one multiple would keep a prompt from ever getting on.
    chunk = std::min(chunk, std::max(pace_.prefill, limits_.chunk_multiple) - plan.prefill());
  }
  if (limits_.max_chunk > 0) chunk = std::min(chunk, limits_.max_chunk);
  return rounded(sequence, chunk);
}

// Returns as many of the next `chunk` tokens of a sequence as end where a chunk may end.
int32_t Scheduler::rounded(const Sequence& sequence, int32_t chunk) const {
  const int32_t multiple = limits_.chunk_multiple;
  if (multiple == 0 || chunk <= 0 || chunk == sequence.pending()) return chunk;
  return std::max(0, (sequence.computed + chunk) / multiple * multiple - sequence.computed);
}

// Returns the longest remembered prefix of a sequence that a chunk may follow.
KvBlocks::Match Scheduler::match(const Sequence& sequence) const {
  std::span<const int32_t> tokens = sequence.reusable();
  const std::string_view salt = sequence.sampling->cache_salt;
  KvBlocks::Match found = kv_.match(tokens, salt);
  const auto hit = [&] { return static_cast<int32_t>(found.path.size()) * kv_.block_size(); };
  // A shorter prefix is looked for among fewer tokens: the match leaves the last of them to compute.
  while (limits_.chunk_multiple > 0 && hit() % limits_.chunk_multiple != 0) {
    tokens = tokens.first(static_cast<size_t>(hit() / limits_.chunk_multiple * limits_.chunk_multiple + 1));
    found = kv_.match(tokens, salt);
  }
  return found;
}

// Plans a chunk of a running sequence. Returns false if no budget is left, or if there are no blocks and no
// sequence behind it to take them from.
bool Scheduler::plan_running(Sequence& sequence, StepPlan& plan, bool may_preempt) {
  make_room(plan.chunks, 1);
  int32_t before = sequence.blocks.size();
  int32_t chunk;
  while (true) {
    chunk = budget(plan, sequence);
    if (chunk <= 0) return false;
    if (kv_.make_writable(sequence.blocks, sequence.computed, sequence.computed + chunk)) break;
    if (gives_ && gives_()) continue;
    if (may_preempt && running_.back().get() != &sequence) {
      preempt_last(plan);
      continue;
    }
    // The last sequence takes the blocks that are left. If none are left, it keeps its blocks until a
    // sequence before it needs them.
    chunk = kv_.reach(sequence.blocks, sequence.computed, sequence.computed + chunk) - sequence.computed;
    chunk = rounded(sequence, chunk);
    if (chunk <= 0) return false;
    kv_.make_writable(sequence.blocks, sequence.computed, sequence.computed + chunk);
    break;
  }
  append(plan, sequence, chunk, before, false);
  return true;
}

// Starts a waiting sequence, if it has a place, blocks and a share of the step. may_wait: whether it may be
// made to wait for blocks of its prefix first.
Scheduler::Admission Scheduler::admit(size_t waiting_index, StepPlan& plan, bool may_wait) {
  Sequence& sequence = *waiting_[waiting_index];
  if (!has_place_for(sequence)) return Admission::kStaysBehind;
  // One that may be made to wait is asked for its blocks now, though the step has no share left for it.
  const bool asks = may_wait && waits_ && !sequence.asked;
  if (!asks && budget(plan, sequence) <= 0) return Admission::kStaysBehind;
  const KvBlocks::Match match = this->match(sequence);
  if (!has_blocks(sequence, match)) return Admission::kStaysBehind;
  if (may_wait && must_wait(sequence)) return Admission::kWaits;
  if (budget(plan, sequence) <= 0) return Admission::kStaysBehind;
  make_room(plan.chunks, 1);
  int32_t chunk;
  try {
    chunk = take_blocks(sequence, match, plan);
  } catch (...) {
    kv_.release(sequence.blocks);
    sequence.computed = 0;
    throw;
  }
  if (chunk == 0) {  // the blocks that are there do not reach the next multiple
    kv_.release(sequence.blocks);
    sequence.computed = 0;
    return Admission::kStaysBehind;
  }
  if (limits_.ageing_s > 0)
    sequence.priority = aged_priority(sequence, waiting_.front()->priority, Clock::now());
  insert_in_order(running_, take(waiting_, waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_index)));
  append(plan, sequence, chunk, 0, true);
  charge_start(plan.chunks.back(), sequence.computed);
  return Admission::kStarts;
}

bool Scheduler::has_place_for(const Sequence& sequence) const {
  const int32_t taken = places() + sequence.places();
  if (taken > limits_.max_seqs) return false;
  return pace_.places == 0 || running_.empty() || taken <= pace_.places;
}

// Returns whether a waiting sequence has blocks in all groups. One that would run alone always has: it finds
// them chunk by chunk.
bool Scheduler::has_blocks(const Sequence& sequence, const KvBlocks::Match& match) {
  if (running_.empty()) {
    const auto lacks_one = [&] {
      for (int32_t group = 0; group < kv_.groups(); ++group) {
        if (kv_.available(group) <= match.idle[group]) return true;
      }
      return false;
    };
    while (lacks_one() && gives_ && gives_()) {
    }
    return true;
  }
  for (int32_t group = 0; group < kv_.groups(); ++group) {
    if (!has_blocks_for(sequence, match, group)) return false;
  }
  return true;
}

// Gives a sequence the matched blocks and those of its first chunk. Returns the number of tokens in the
// chunk, 0 if the blocks that are there do not reach the next multiple of chunk_multiple.
int32_t Scheduler::take_blocks(Sequence& sequence, const KvBlocks::Match& match, const StepPlan& plan) {
  kv_.attach(match, sequence.blocks);
  sequence.computed = sequence.blocks.size() * kv_.block_size();
  sequence.tokens_when_admitted = sequence.size();
  ++sequence.starts;
  sequence.asked = false;
  sequence.snapshot_ends = {};
  if (kv_.keeps_snapshots()) {
    const int32_t unit = std::max(kv_.block_size(), limits_.chunk_multiple);
    sequence.snapshot_ends = {match.remembered * kv_.block_size() / unit * unit,
                              (sequence.size() - 1) / unit * unit};
  }
  int32_t end = sequence.computed + budget(plan, sequence);
  int32_t chunk = kv_.reach(sequence.blocks, sequence.computed, end) - sequence.computed;
  if (chunk > 0 && limits_.chunk_multiple > 0) {
    chunk = rounded(sequence, chunk);
    if (chunk == 0) return 0;
  }
  if (chunk <= 0 || !kv_.make_writable(sequence.blocks, sequence.computed, sequence.computed + chunk)) {
    throw std::logic_error("[scheduler] an admitted sequence must have its blocks");
  }
  return chunk;
}

int32_t Scheduler::places() const {
  int32_t places = 0;
  for (const auto& sequence : running_) places += sequence->places();
  return places;
}

// Returns whether there are blocks for all tokens of a waiting sequence.
bool Scheduler::has_blocks_for(const Sequence& sequence, const KvBlocks::Match& match, int32_t group) const {
  auto hit = static_cast<int32_t>(match.path.size());
  int32_t missing = kv_.blocks_for(sequence.size()) - hit, limit = kv_.shape(group).max_held;
  if (limit > 0) missing = std::min(missing, std::max(0, limit - match.filled[group]));
  missing += blocks_of_forks(sequence);
  const int32_t left = kv_.available(group) - match.idle[group] - outstanding_blocks(group);
  return missing <= left && missing <= left - promised_blocks(sequence, group);
}

// Returns the blocks that the other sequences need which wait for their prefix: all that they will hold, as
// what of it is there already may be idle.
int32_t Scheduler::promised_blocks(const Sequence& other_than, int32_t group) const {
  int32_t blocks = 0;
  if (!waits_) return blocks;
  for (const auto& sequence : waiting_) {
    if (!sequence->fetching || sequence.get() == &other_than) continue;
    const int32_t all = kv_.blocks_for(sequence->size()), limit = kv_.shape(group).max_held;
    blocks += (limit > 0 ? std::min(all, limit) : all) + blocks_of_forks(*sequence);
  }
  return blocks;
}

// Returns how many blocks the running sequences still need for the tokens that they have, and their forks for
// the next token.
int32_t Scheduler::outstanding_blocks(int32_t group) const {
  int32_t blocks = 0;
  for (const auto& sequence : running_) {
    blocks += kv_.outstanding(group, sequence->blocks, sequence->computed, sequence->size());
    blocks += blocks_of_forks(*sequence);
  }
  return blocks;
}

void Scheduler::append(StepPlan& plan, Sequence& sequence, int32_t tokens, int32_t blocks_before,
                       bool admitted) {
  const bool decode = sequence.decodes();
  int32_t prompt_rows = sequence.prompt_rows(tokens);
  plan.chunks.push_back({&sequence, tokens, prompt_rows, blocks_before, admitted, decode});
  plan.tokens += tokens;
  plan.prompt_rows += prompt_rows;
  plan.decodes += decode;
}

void Scheduler::preempt_last(StepPlan& plan) {
  auto last = running_.end() - 1;
  std::erase_if(plan.chunks, [&](const PlannedChunk& chunk) {
    if (chunk.sequence != last->get()) return false;
    plan.tokens -= chunk.tokens;  // drafts come only once the plan is made
    plan.prompt_rows -= chunk.prompt_rows;
    plan.decodes -= chunk.decode;
    return true;
  });
  move_to_waiting(last);
}

void Scheduler::move_to_waiting(Queue::iterator running) {
  ++stats_.preemptions;
  send_back(**running);
}

bool Scheduler::preempt(int64_t id, int32_t completion) {
  auto at = find(running_, id, completion);
  if (at == running_.end()) return false;
  move_to_waiting(at);
  return true;
}

void Scheduler::debug_preempt() {
  ++plans_;
  if (limits_.debug_preempt_every == 0 || plans_ % limits_.debug_preempt_every != 0) return;
  // Only sequences that got a token since their last start are drawn, and those that never get any after
  // their first start: forced preemption could otherwise keep one from ever ending.
  std::vector<const Sequence*> grown;
  for (const auto& sequence : running_) {
    const bool first = sequence->sampling->pools() && sequence->starts == 1 && sequence->computed > 0;
    if (first || sequence->size() > sequence->tokens_when_admitted) grown.push_back(sequence.get());
  }
  if (grown.empty()) return;
  double draw = philox_uniform(limits_.debug_seed, plans_);
  const Sequence* drawn = grown[static_cast<size_t>(draw * static_cast<double>(grown.size()))];
  preempt(drawn->id, drawn->completion);
}

void Scheduler::commit(const StepPlan& plan) {
  ++stats_.steps;
  for (const PlannedChunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    if (chunk.admitted) {
      stats_.prefix_lookup_tokens += static_cast<int64_t>(sequence.reusable().size());
      stats_.prefix_hit_tokens += sequence.computed;
      stats_.snapshot_hits += sequence.blocks.state && sequence.computed > 0;
      if (sequence.cached_tokens >= 0) {  // it ran before
        stats_.resumed_kept_tokens += sequence.computed;
        stats_.resumed_computed_tokens += std::max(0, sequence.tokens_when_admitted - 1 - sequence.computed);
      } else {
        sequence.cached_tokens = sequence.computed;
      }
    }
    (chunk.decode ? stats_.decode_tokens : stats_.prefill_tokens) += chunk.tokens;
    sequence.computed += chunk.tokens;
    charge(sequence);
    remember(sequence);
    // While a sequence decodes, the states at the end of each block are kept too, in place of the last ones:
    // a copy of what every step reads and writes, once in a block of steps. So the next turn of a
    // conversation finds nearly all of this one.
    if (chunk.decode || sequence.at_snapshot_end())
      kv_.take_snapshot(sequence.blocks, sequence.computed, chunk.decode);
    kv_.drop_unseen(sequence.blocks, sequence.computed);
    if (chunk.drafted == 0) stats_.max_waste_slots = std::max(stats_.max_waste_slots, waste(sequence));
  }
}

void Scheduler::remember(Sequence& sequence) {
  try {
    kv_.publish(sequence.blocks, sequence.publishable(), sequence.sampling->cache_salt,
                sequence.sampling->priority);
  } catch (const std::bad_alloc&) {
    // The step is done, and nothing depends on the prefix cache remembering it: the sequence's next commit
    // tries again.
    ++stats_.publishes_without_memory;
  }
}

int32_t Scheduler::reserve(const StepPlan& plan, size_t chunk, int32_t count) {
  Sequence& sequence = *plan.chunks[chunk].sequence;
  const int32_t from = sequence.computed + plan.chunks[chunk].tokens;
  int32_t room = std::min(token_room(plan), count);
  if (const int32_t multiple = limits_.chunk_multiple; multiple > 0)
    room = std::min(room, (multiple - from % multiple) % multiple);
  const int32_t end = room > 0 ? kv_.reach(sequence.blocks, from, from + room) : from;
  try {
    if (end > from && kv_.make_writable(sequence.blocks, from, end)) return end - from;
  } catch (const std::bad_alloc&) {  // the sequence has the blocks that it had
  }
  return 0;
}

void Scheduler::extend(StepPlan& plan, size_t chunk, std::span<const int32_t> draft, bool forced) {
  PlannedChunk& extended = plan.chunks[chunk];
  Sequence& sequence = *extended.sequence;
  const int32_t room = reserve(plan, chunk, static_cast<int32_t>(draft.size()));
  try {
    sequence.draft.assign(draft.begin(), draft.begin() + room);
  } catch (const std::bad_alloc&) {
    sequence.draft.clear();
  }
  const int32_t end = sequence.computed + extended.tokens + static_cast<int32_t>(sequence.draft.size());
  kv_.shrink(sequence.blocks, std::min(sequence.blocks.size(), kv_.blocks_for(end)));
  extended.drafted = static_cast<int32_t>(sequence.draft.size());
  extended.forced = sequence.forced = forced && extended.drafted > 0;
  if (!forced) sequence.drafted += extended.drafted;
  plan.tokens += extended.drafted;
  plan.drafted += extended.drafted;
}

void Scheduler::accept(Sequence& sequence) {
  ++sequence.computed;
  charge(sequence);
  if (!sequence.forced) ++sequence.accepted;
  ++stats_.decode_tokens;
  // Most tokens end no block; where one does, the cache may remember the block now.
  if (sequence.computed % kv_.block_size() == 0) remember(sequence);
}

void Scheduler::settle(Sequence& sequence) {
  sequence.draft.clear();
  kv_.shrink(sequence.blocks, kv_.blocks_for(sequence.computed));
  kv_.drop_unseen(sequence.blocks, sequence.computed);
  stats_.max_waste_slots = std::max(stats_.max_waste_slots, waste(sequence));
}

void Scheduler::rollback(StepPlan& plan, bool ran) {
  ++stats_.rolled_back;
  for (const PlannedChunk& chunk : plan.chunks) take_back(chunk, ran);
  plan = StepPlan();
}

void Scheduler::take_back(StepPlan& plan, const Sequence& sequence) {
  const auto at = std::ranges::find(plan.chunks, &sequence, &PlannedChunk::sequence);
  if (at == plan.chunks.end()) return;
  take_back(*at, true);
  plan.chunks.erase(at);
}

void Scheduler::take_back(const PlannedChunk& chunk, bool ran) {
  Sequence& sequence = *chunk.sequence;
  sequence.draft.clear();
  if (chunk.admitted) {
    shares_.charge(sequence.sampling->tenant, -chunk.paid, sequence.sampling->tenant_weight);
    sequence.charged = chunk.charged_before;
  }
  if (chunk.admitted || (ran && sequence.blocks.state)) {
    send_back(sequence);
  } else {
    kv_.shrink(sequence.blocks, chunk.blocks_before);
  }
}

// Sends a running sequence back to its place in the queue.
void Scheduler::send_back(Sequence& sequence) {
  kv_.release(sequence.blocks);
  sequence.computed = 0;
  insert_in_order(waiting_, take(running_, find(running_, sequence.id, sequence.completion)));
}

int64_t Scheduler::waste_slots() const {
  int64_t slots = 0;
  std::unordered_set<int32_t> seen;  // last blocks: forks share theirs until they write to it
  for (const auto& sequence : running_) {
    int32_t size = sequence->blocks.size();
    if (size > 0 && seen.insert(sequence->blocks.tables[0][size - 1]).second) slots += waste(*sequence);
  }
  return slots;
}

int64_t Scheduler::waste(const Sequence& sequence) const {
  return static_cast<int64_t>(sequence.blocks.size()) * kv_.block_size() - sequence.computed;
}

void Scheduler::for_each(const std::function<void(const Sequence&)>& visit) const {
  for (const Queue* queue : {&running_, &waiting_}) {
    for (const auto& sequence : *queue) visit(*sequence);
  }
}

void Scheduler::check(const std::function<int64_t(int32_t group)>& elsewhere) const {
  for (const auto& sequence : running_) {
    check_equal("computed tokens in a sequence's blocks", std::min(sequence->computed, sequence->size()),
                sequence->computed);
    check_equal("blocks of a sequence", sequence->blocks.size(), kv_.blocks_for(sequence->computed));
  }
  for (const auto& sequence : waiting_) check_equal("blocks of one that waits", sequence->blocks.size(), 0);
  for (int32_t group = 0; group < kv_.groups(); ++group) {
    int64_t held = elsewhere ? elsewhere(group) : 0;
    for (const auto& sequence : running_) held += sequence->blocks.tables[group].held();
    kv_.check(group, held);
  }
  kv_.check_states(running());
}

}  // namespace tensorwright
