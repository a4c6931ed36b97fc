// Steps that are started before the tokens of the last one are known, where the executor draws them itself.
//
// A step leads if the executor draws the tokens of all its rows. It is started and committed, and each of its
// sequences that goes on gets a token that nobody knows yet (Sequence::awaits_token). The next call plans the
// next step with these tokens as they are, starts it, and only then waits for the rows of the one before. So
// the device has work while the engine plans, and while it takes tokens.
//
// What the tokens turn out to be may take back a share of the step that is underway already: that of a
// sequence which has ended, and that of one whose token the executor was not sure of. Such a share was
// computed for nobody. The cache remembers none of it, because a step is committed only when the tokens that
// it began with are known. Blocks and slots that are given back may have new owners at once: whatever these
// compute or copy comes after the step on the device.
#include <algorithm>
#include <utility>

#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

namespace {

// Returns whether a sequence ends with its next token, whatever that is.
bool ends_next(const Sequence& sequence, int32_t max_seq_len) {
  return sequence.generated() + 1 >= sequence.sampling->max_tokens || sequence.size() + 1 >= max_seq_len;
}

}  // namespace

// Returns whether the next step may begin before the rows of step_ are there. Proposers look at tokens before
// each step, and a draw that waits for its mask belongs to no step.
bool EngineCore::leads() const {
  return executor_->runs_ahead() && !drafter_ && pending_.empty() &&
         step_.draws.size() == step_.logit_rows.size() && std::ranges::all_of(step_.draws, &RowDraw::wanted);
}

// Makes a step that was started a fact. The tokens that it began with must be known.
void EngineCore::commit(StartedStep& step) {
  scheduler_->commit(step.plan);
  step.plan = StepPlan();
  if (!step.leads) return;
  int32_t row = 0;
  for (const WantedRows& chunk : step.wanted) {
    const bool draws = chunk.sequence && chunk.drawn > 0;
    // There is room: wanted_rows() has made it.
    if (draws && !ends_next(*chunk.sequence, facts().max_seq_len)) chunk.sequence->tokens.push_back(-1 - row);
    row += chunk.rows();
  }
}

// Starts the next step, if it can, and takes the rows of the one that is underway.
void EngineCore::go_on(std::vector<Event>* events) {
  if (underway_->leads) start_next();
  StartedStep step = std::move(*underway_);
  underway_.reset();
  const LogitRows logits = executor_->finish();
  step.computed = Clock::now();
  check_rows(step, logits);
  put_tokens(step, logits);
  land(step, logits, events);
  if (!next_) return;
  commit(*next_);
  underway_ = std::move(next_);
  next_.reset();
}

// Plans and starts the step behind the one that is underway. Where that fails, nothing is started: the call
// of step() that finds nothing underway deals with it.
void EngineCore::start_next() {
  StepPlan plan;
  bool ran = false;
  try {
    scheduler_->set_pace(pace_.pace());
    plan = scheduler_->plan();
    if (plan.chunks.empty()) return;
    if (forced_) draft(plan);
    StartedStep step = begun(plan, true);
    ran = true;
    executor_->start(step_);
    step.plan = std::move(plan);
    next_ = std::move(step);
    ++ahead_;
  } catch (const std::logic_error&) {  // an error of the engine itself, or of the device
    throw;
  } catch (const std::exception&) {
    if (!plan.chunks.empty()) scheduler_->rollback(plan, ran);
  }
}

// Takes away the tokens that were not known, because their rows are there. The next step has computed for
// nobody what it computed behind a token that the executor was not sure of.
void EngineCore::put_tokens(const StartedStep& step, const LogitRows& logits) {
  int32_t row = 0;
  for (const WantedRows& chunk : step.wanted) {
    Sequence* const sequence = chunk.sequence;
    if (sequence && sequence->awaits_token()) {
      sequence->tokens.pop_back();
      if (next_ && logits.tokens[row] < 0) {
        scheduler_->take_back(next_->plan, *sequence);
        leave_steps(*sequence);
      }
    }
    row += chunk.rows();
  }
}

// The rows of the steps that were started are no more for this sequence.
void EngineCore::leave_steps(const Sequence& sequence) noexcept {
  for (std::optional<StartedStep>* step : {&underway_, &next_}) {
    if (!*step) continue;
    for (WantedRows& chunk : (*step)->wanted)
      if (chunk.sequence == &sequence) chunk.sequence = nullptr;
    std::erase_if((*step)->plan.chunks,
                  [&](const PlannedChunk& chunk) { return chunk.sequence == &sequence; });
  }
}

}  // namespace tensorwright
