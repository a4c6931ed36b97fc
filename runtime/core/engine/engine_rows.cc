// EngineCore's last part of a step: from logit rows to logprobs, tokens and events.
#include <algorithm>
#include <new>

#include "runtime/core/base/make_room.h"
#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

namespace {

// A mask that is late is waited for this part of the time that its row took, at most: the other rows of the
// step wait with it. A sequence that sits out loses a step, and the steps it is in are the fuller for the
// wait.
constexpr int kGraceShare = 2;

// Why the sequence is done after its last token, "" if it is not.
const char* finish_reason(const Sequence& sequence, int32_t max_seq_len) {
  const Sampling& s = *sequence.sampling;
  int32_t token = sequence.tokens.back();
  if (s.stop_token_ids.contains(token) || (!s.ignore_eos && s.eos_token_ids.contains(token))) return "stop";
  if (sequence.generated() >= s.max_tokens || sequence.size() >= max_seq_len) return "length";
  return "";
}

}  // namespace

std::span<const float> EngineCore::values(const LogitRows& logits, int32_t row) const {
  return {logits.data + row * logits.stride, static_cast<size_t>(facts().vocab_size)};
}

// Tells of prompt positions and draws from the other rows. `computing`: how long the rows took.
void EngineCore::take_rows(const std::vector<WantedRows>& wanted, const LogitRows& logits,
                           Clock::duration computing, std::vector<Event>* events) {
  std::vector<Failure> failures;
  int32_t row = 0;
  for (auto [sequence, prompt, sampled] : wanted) {
    try {
      take_prompt_logprobs(*sequence, logits, row, prompt, events);
      if (sampled) fork(*sequence, values(logits, row + prompt));
    } catch (const std::exception& error) {
      failures.push_back({sequence->id, as_error(error)});
    }
    row += prompt + sampled;
  }
  end_failed(failures, events);
  await_masks(Clock::now() + computing / kGraceShare, events);
  sit_out(events);
}

// Draws from the rows that need no mask or have it. Those of this step that have none are waited for until
// `until`; a mask that missed a step already is not, unless nobody else is there.
void EngineCore::await_masks(Clock::time_point until, std::vector<Event>* events) {
  while (true) {
    if (draw_ready(events)) continue;
    bool late = std::ranges::all_of(pending_, [](const Draw& draw) { return draw.kept != nullptr; });
    bool alone = !pending_.empty() && all_wait();
    if (late && !alone) return;
    if (masks_->wait_for_masks(alone ? Clock::time_point::max() : until, events)) continue;
    draw_ready(events);
    return;
  }
}

bool EngineCore::all_wait() const {
  return pending_.size() == static_cast<size_t>(scheduler_->running()) + scheduler_->waiting();
}

// False if there were none.
bool EngineCore::draw_ready(std::vector<Event>* events) {
  take_ready();
  if (ready_.empty()) return false;
  take_tokens(events);
  return true;
}

// The rows that are left are kept until their masks come: the executor's are gone with the next step. Their
// sequences have no token to compute, so the scheduler passes them over.
void EngineCore::sit_out(std::vector<Event>* events) {
  std::vector<Failure> failures;
  for (Draw& draw : pending_) {
    if (draw.kept) continue;
    try {
      draw.kept = std::make_shared<const std::vector<float>>(draw.row.begin(), draw.row.end());
      draw.row = *draw.kept;
      ++sat_out_;
    } catch (const std::bad_alloc& error) {
      failures.push_back({draw.sequence->id, as_error(error)});
    }
  }
  end_failed(failures, events);
}

// Who was preempted computes its row again.
void EngineCore::forget_preempted() {
  std::erase_if(pending_, [](const Draw& draw) { return draw.sequence->pending() > 0; });
}

// The sequences that fork off this one, if any, draw from the same row.
void EngineCore::fork(Sequence& first, std::span<const float> row) {
  std::vector<Sequence*> sequences = scheduler_->fork(first);
  for (Sequence* fork : sequences) fork->seed = completion_seed(fork->seed, fork->completion);
  sequences.insert(sequences.begin(), &first);
  for (Sequence* sequence : sequences) pending_.push_back({sequence, row});
}

// Moves those of pending_ that can be drawn from now to ready_. Takes no memory.
void EngineCore::take_ready() {
  ready_.clear();
  size_t left = 0;
  for (Draw& draw : pending_) {
    const Sequence& sequence = *draw.sequence;
    bool guided = sequence.sampling->guided;
    if (guided) draw.mask = masks_->take_mask(sequence.id, sequence.completion, sequence.generated());
    if (guided && !draw.mask) {
      if (&pending_[left] != &draw) pending_[left] = std::move(draw);
      ++left;
    } else {
      ready_.push_back(std::move(draw));
    }
  }
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(left), pending_.end());
}

// Draws from all rows of ready_ at once, on the executor's threads. A failure ends the whole request, after
// all rows: others of it may be among them.
void EngineCore::take_tokens(std::vector<Event>* events) {
  executor_->run_tasks(static_cast<int>(ready_.size()), [this](int task, int thread) {
    Draw& mine = ready_[static_cast<size_t>(task)];
    try {
      mine.sample = sample(mine, thread);
    } catch (...) {
      mine.error = std::current_exception();
    }
  });
  std::vector<Failure> failures;
  for (Draw& draw : ready_) {
    int64_t id = draw.sequence->id;  // it may be gone in the next line
    try {
      if (draw.error) std::rethrow_exception(draw.error);
      take_token(*draw.sequence, std::move(draw.sample), events);
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
  }
  ready_.clear();
  end_failed(failures, events);
}

void EngineCore::end_failed(const std::vector<Failure>& failures, std::vector<Event>* events) {
  for (const Failure& failure : failures) end(failure.id, &failure.error, events);
}

Sample EngineCore::sample(const Draw& draw, int thread) {
  const Sequence& sequence = *draw.sequence;
  std::span<const uint32_t> mask;
  if (draw.mask) mask = *draw.mask;
  return samplers_[static_cast<size_t>(thread)].sample(draw.row, *sequence.sampling, sequence.seed,
                                                       sequence.size(),
                                                       {sequence.tokens, sequence.prompt_tokens}, mask);
}

// Tells of the sequence's next `rows` prompt positions, whose logits are from `row` on.
void EngineCore::take_prompt_logprobs(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows,
                                      std::vector<Event>* events) {
  if (rows == 0) return;
  Event event = event_of(sequence);
  for (int32_t i = 0; i < rows; ++i) {
    int32_t next = sequence.tokens[sequence.scored + i + 1];
    event.prompt_logprobs.push_back(
        samplers_[0].score(values(logits, row + i), next, sequence.sampling->prompt_logprobs));
  }
  events->push_back(std::move(event));
  sequence.scored += rows;
}

// What throws changes nothing.
void EngineCore::take_token(Sequence& sequence, Sample sample, std::vector<Event>* events) {
  if (sequence.first_token_s < 0) sequence.first_token_s = sequence.since_arrival();
  Event event = event_of(sequence);
  event.tokens = {sample.token};
  if (sequence.sampling->logprobs >= 0) event.logprobs.push_back(std::move(sample.logprobs));
  make_room(*events, 1);
  make_room(sequence.tokens, 1);
  // Nothing throws from here on: the names of a finish are short.
  sequence.tokens.push_back(sample.token);
  ++generated_;
  event.finish = finish_reason(sequence, facts().max_seq_len);
  if (event.finish == "stop") event.stop_token = sample.token;
  events->push_back(std::move(event));
  if (events->back().finish.empty()) return;
  remove(events->back());
}

}  // namespace tensorwright
