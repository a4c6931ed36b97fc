// The engine's step: it plans chunks, computes them, and finds the requests at fault where that fails.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/invariants.h"
#include "runtime/core/base/make_room.h"
#include "runtime/core/engine/engine_core.h"
#include "runtime/core/interface/fatal_error.h"
#include "runtime/core/sampling/row_draw.h"

namespace tensorwright {

namespace {

// The number of steps between two checks of the invariants. A check takes about a microsecond.
constexpr int64_t kCheckEvery = 16;

}  // namespace

void EngineCore::step(std::vector<Event>* events) {
  if (!can_step()) return;
  take_step(events);
  if (++calls_ % kCheckEvery == 0 || calls_ == debug_lose_block_) check();
}

void EngineCore::check() {
  if (debug_lose_block_ > 0 && calls_ == debug_lose_block_) kv_->make_writable(debug_lost_, 0, 1);
  ++checks_;
  scheduler_->check([this](int32_t group) { return transfer_->held(group) + pins_->held(group); });
  int64_t sequences = 0, completions = 0;
  scheduler_->for_each([&](const Sequence& sequence) { sequences += sequence.places(); });
  for (const auto& [id, left] : open_) completions += left;
  check_equal("completions of open requests", completions, sequences);
  check_equal("requests that ended or are open",
              finished_ + aborted_ + timed_out_ + failed_ + static_cast<int64_t>(open_.size()), added_);
}

void EngineCore::take_step(std::vector<Event>* events) {
  StepPlan plan;
  std::vector<Share> shares;
  if (underway_) return go_on(events);
  if (forced_) {
    forced_->await_masks(*scheduler_, events);
    if (idle()) return;  // what was alive has ended meanwhile
  }
  try {
    scheduler_->set_pace(pace_.pace());
    plan = scheduler_->plan();
    shares = shares_of(plan);
  } catch (const std::logic_error&) {  // an error of the engine itself
    throw;
  } catch (const std::exception&) {  // a block could not be copied, or there was no memory
    if (!plan.chunks.empty()) scheduler_->rollback(plan);
    forget_preempted();
    shares = alive([](const Sequence& sequence) { return sequence.computed > 0; });
    // If no sequence has started yet, the first one starts alone, or fails alone. So each call makes
    // progress.
    if (shares.empty())
      shares = alive(
          [first = true](const Sequence& s) mutable { return !s.parked && std::exchange(first, false); });
    run_each(shares, events);
    return;
  }
  forget_preempted();
  if (plan.chunks.empty()) {
    if (scheduler_->only_fetches()) return;
    if (pending_.empty()) throw std::logic_error("[engine] the scheduler has sequences but no step for them");
    if (draw_ready(events)) return;  // a mask may have come since the last look
    masks_->wait_for_masks(Clock::time_point::max(), events);
    draw_ready(events);
    return;
  }
  if (forced_ || drafter_) draft(plan);
  if (!run(plan, shares.size() == 1, true, events)) run_each(shares, events);
}

// Adds drafts to the decodes of the plan. Where that fails for want of memory, the step has fewer.
void EngineCore::draft(StepPlan& plan) {
  try {
    if (forced_) forced_->extend(plan, *scheduler_);
    if (drafter_) drafter_->extend(plan, *scheduler_);
  } catch (const std::bad_alloc&) {
  }
}

std::vector<EngineCore::Share> EngineCore::alive(const std::function<bool(const Sequence&)>& wanted) const {
  std::vector<Share> shares;
  scheduler_->for_each([&](const Sequence& sequence) {
    if (wanted(sequence)) shares.push_back(share_of(sequence));
  });
  return shares;
}

EngineCore::Share EngineCore::share_of(const Sequence& sequence) {
  return {{sequence.id, sequence.completion}, sequence.computed};
}

std::vector<EngineCore::Share> EngineCore::shares_of(const StepPlan& plan) {
  std::vector<Share> shares;
  for (const PlannedChunk& chunk : plan.chunks) shares.push_back(share_of(*chunk.sequence));
  return shares;
}

// Finds the sequences at fault after a step failed. It computes the share of each sequence alone, which gives
// the same result as in company. A sequence whose share fails again ends with the error. A sequence that
// finds no room waits for the next step. The first sequence always has room, so each call makes progress.
void EngineCore::run_each(const std::vector<Share>& shares, std::vector<Event>* events) {
  for (const Share& share : shares) {
    try {
      run_alone(share, events);
    } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) {
      Error typed = as_error(error);
      end(share.name.first, &typed, events);
    }
  }
}

// Computes a sequence's share of a step that failed. Where the failed step has spoilt the sequence's states,
// it first computes again what was computed before, or steps that always fail in company would keep the
// sequence from ever getting on.
void EngineCore::run_alone(const Share& share, std::vector<Event>* events) {
  for (bool gets_on = false; !gets_on;) {
    StepPlan plan = scheduler_->plan_only(share.name.first, share.name.second);
    if (plan.chunks.empty()) return;
    gets_on = plan.chunks[0].sequence->computed + plan.chunks[0].tokens > share.computed;
    if (!run(plan, true, false, events)) return;
  }
}

// Computes a planned step, or starts it where the next one need not wait for its tokens. Returns false if the
// executor threw or there was no memory; then the plan is rolled back, and with `at_fault` its first request
// ends with the error. may_lead: whether it may be started only.
bool EngineCore::run(StepPlan& plan, bool at_fault, bool may_lead, std::vector<Event>* events) {
  StartedStep step;
  LogitRows logits;
  bool ran = false;
  try {
    step = begun(plan, may_lead);
    ran = true;
    if (step.leads) {
      executor_->start(step_);
    } else {
      logits = executor_->run(step_);
      check_rows(step, logits);
    }
    if (drafter_) drafter_->computed(plan);
  } catch (const FatalError&) {  // no step can be computed any more
    throw;
  } catch (const std::exception& error) {
    const int64_t first = plan.chunks[0].sequence->id;
    scheduler_->rollback(plan, ran);
    const Error typed = as_error(error);
    if (at_fault) end(first, &typed, events);
    return false;
  }
  step.computed = Clock::now();
  step.plan = std::move(plan);
  commit(step);
  if (step.leads) {
    underway_ = std::move(step);
  } else {
    land(step, logits, events);
  }
  return true;
}

// Makes a step of a plan, for the executor and for the engine's books.
StartedStep EngineCore::begun(const StepPlan& plan, bool may_lead) {
  StartedStep step;
  step.begin = Clock::now();
  step.number = scheduler_->stats().steps;
  step.wanted = wanted_rows(plan);
  for (const WantedRows& chunk : step.wanted) {
    step.rows += chunk.rows();
    step.waits = step.waits || chunk.sequence->sampling->guided;
  }
  step.time = StepTime::of(plan);
  step.paced = {plan.decodes, plan.prefill()};
  build_step(plan, static_cast<int32_t>(facts().block_bytes.size()), kv_->block_size(), &step_,
             facts().sparse_prefill > 0);
  ask_for_tokens(step.wanted);
  step.leads = may_lead && leads();
  if (timeline_) step.spans = spans_of(plan, step.number, step.rows);
  return step;
}

void EngineCore::check_rows(const StartedStep& step, const LogitRows& logits) {
  if (logits.rows == step.rows) return;
  throw Error("TensorwrightError", "[engine] an executor must return the " + std::to_string(step.rows) +
                                       " rows it was asked for, got " + std::to_string(logits.rows) +
                                       "; this is a bug of the executor");
}

// Takes the rows of a step that is committed. Of two steps that were started, the second one begins where the
// first one's rows come.
void EngineCore::land(StartedStep& step, const LogitRows& logits, std::vector<Event>* events) {
  const Clock::time_point begin = std::max(step.begin, computed_);
  const Clock::duration computing = step.computed - begin;
  computed_ = step.computed;
  if (timeline_) keep_step(step, begin);
  if (forced_) forced_->observe_step(computing);
  take_rows(step.wanted, logits, computing, events);
  if (timeline_) keep_draws(step);
  // What every step takes besides its tokens is saved by each step that is saved. Waits for masks are not.
  const Clock::duration whole = step.waits ? computing : Clock::now() - begin;
  step.paced.seconds = step.time.seconds = std::chrono::duration<double>(whole).count();
  observe(step.paced, step.waits, begin);
  if (step.waits) step.time.decodes = 0;
  if (drafter_) drafter_->observe_step(step.time);
  if (fetches_ && step.time.decodes == 0) fetches_->observe(step.time.tokens, step.time.seconds);
}

// Learns from a step that has ended. What clients see between two tokens is the time from the end of one step
// to the end of the next. waited: whether the step waited for masks, which is no matter of its size.
void EngineCore::observe(PacedStep step, bool waited, Clock::time_point start) {
  fastest_.observe(step.decodes + step.prefill, step.seconds);
  const Clock::time_point now = Clock::now();
  if (!waited && step_ended_ && *step_ended_ <= start)
    step.seconds = std::chrono::duration<double>(now - *step_ended_).count();
  pace_.observe(step);
  step_ended_.reset();
  if (!idle()) step_ended_ = now;
}

// Returns the rows that the plan needs. It also makes room for the draws from them: after the step is
// committed, a lack of memory could not be undone.
std::vector<WantedRows> EngineCore::wanted_rows(const StepPlan& plan) {
  std::vector<WantedRows> wanted;
  size_t draws = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    if (sequence.queue_s < 0) sequence.queue_s = sequence.since_arrival();
    wanted.push_back({&sequence, chunk.prompt_rows, chunk.last() ? 1 + chunk.drafted : 0});
    if (chunk.last()) draws += static_cast<size_t>(sequence.places());
    make_room(sequence.tokens, 1);
  }
  make_room(pending_, draws);
  ready_.reserve(pending_.capacity());
  return wanted;
}

// Leaves the draws to the executor that it can do. A row that several sequences or tokens of a draft are
// drawn from is none of them.
void EngineCore::ask_for_tokens(const std::vector<WantedRows>& wanted) {
  step_.draws.clear();
  if (!executor_->draws_tokens()) return;
  bool any = false;
  for (const auto& [sequence, prompt, drawn] : wanted) {
    step_.draws.resize(step_.draws.size() + static_cast<size_t>(prompt + drawn));
    if (drawn != 1 || sequence->forks > 0) continue;
    const History history{sequence->tokens, sequence->prompt_tokens};
    step_.draws.back() = row_draw(*sequence->sampling, sequence->seed, sequence->size(), history);
    any = any || step_.draws.back().wanted;
  }
  if (!any) step_.draws.clear();
}

}  // namespace tensorwright
