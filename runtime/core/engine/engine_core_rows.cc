// What becomes of the rows that a step has computed: logprobs of prompts, pooled vectors, and tokens that are
// drawn now or when their masks have come. The sequences whose last token is drawn end here.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/make_room.h"
#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

namespace {

// The engine waits for a late mask for at most 1 / kGraceShare of the time that the rows took, because the
// other rows of the step wait too. A sequence whose mask comes later sits out: it loses a step.
constexpr int kGraceShare = 2;

// Returns why the sequence ends with its last token, or kNone if it does not end.
const char* finish_reason(const Sequence& sequence, int32_t max_seq_len) {
  const Sampling& s = *sequence.sampling;
  if (ends_sequence(s, sequence.tokens.back())) return finishes::kStop;
  if (sequence.generated() >= s.max_tokens || sequence.size() >= max_seq_len) return finishes::kLength;
  return finishes::kNone;
}

}  // namespace

std::span<const float> EngineCore::values(const LogitRows& logits, int32_t row) const {
  return {logits.data + row * logits.stride, static_cast<size_t>(facts().columns())};
}

// Returns the draw from the first of a sequence's rows.
EngineCore::Draw EngineCore::draw_of(Sequence& sequence, const LogitRows& logits, int32_t row,
                                     int32_t rows) const {
  Draw draw{&sequence, {}};
  draw.ahead = rows - 1;
  draw.stride = logits.stride;
  if (logits.tokens) draw.token = logits.tokens[row];
  if (draw.token < 0) draw.row = values(logits, row);
  return draw;
}

// Reports the logprobs of prompt positions and draws tokens from the other rows. `computing` is the time that
// the rows took.
void EngineCore::take_rows(const std::vector<WantedRows>& wanted, const LogitRows& logits,
                           Clock::duration computing, std::vector<Event>* events) {
  std::vector<Failure> failures;
  int32_t row = 0;
  for (const WantedRows& chunk : wanted) {
    auto [sequence, prompt, drawn] = chunk;
    if (!sequence) {
      row += chunk.rows();
      continue;
    }
    const int64_t id = sequence->id;  // pool() may end the sequence
    try {
      if (sequence->sampling->pools()) {
        pool(chunk, logits, row, events);
        row += prompt + drawn;
        continue;
      }
      take_prompt_logprobs(*sequence, logits, row, prompt, events);
      if (drawn > 0) fork(*sequence, draw_of(*sequence, logits, row + prompt, drawn));
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
    row += prompt + drawn;
  }
  end_failed(failures, events);
  await_masks(Clock::now() + computing / kGraceShare, events);
  sit_out(events);
}

// Draws from the rows that need no mask or have one. It waits until `until` for the masks of this step's
// other rows. It does not wait for the mask of a sequence that sits out already, unless all sequences wait
// for a mask.
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

// Draws from the rows that need no mask or have one. Returns false if there are none.
bool EngineCore::draw_ready(std::vector<Event>* events) {
  take_ready();
  if (ready_.empty()) return false;
  take_tokens(events);
  return true;
}

// Copies the rows whose masks have not come, because the executor's rows are valid only until its next step.
// Their sequences have no token to compute, so the scheduler passes them over.
void EngineCore::sit_out(std::vector<Event>* events) {
  std::vector<Failure> failures;
  for (Draw& draw : pending_) {
    if (draw.kept) continue;
    try {
      draw.kept = std::make_shared<const std::vector<float>>(draw.row.begin(), draw.row.end());
      draw.row = *draw.kept;
      draw.ahead = 0;  // the rows behind it are not kept
      if (!draw.sequence->draft.empty()) scheduler_->settle(*draw.sequence);
      ++sat_out_;
    } catch (const std::bad_alloc& error) {
      failures.push_back({draw.sequence->id, as_error(error)});
    }
  }
  end_failed(failures, events);
}

// Drops the rows of sequences that were preempted. Such a sequence computes its row again.
void EngineCore::forget_preempted() {
  std::erase_if(pending_, [](const Draw& draw) { return draw.sequence->pending() > 0; });
}

// Adds the draws of `first` and of the sequences that fork from it. All of them draw from the same row.
void EngineCore::fork(Sequence& first, const Draw& draw) {
  if (first.sampling->beams()) return pending_.push_back(draw);  // they fork when their tokens are chosen
  std::vector<Sequence*> sequences;
  if (first.forks > 0) sequences = scheduler_->fork(first);
  for (Sequence* fork : sequences) fork->seed = completion_seed(fork->seed, fork->completion);
  pending_.push_back(draw);
  for (Sequence* sequence : sequences) pending_.push_back({sequence, draw.row});
}

// Moves the draws that need no mask or have one from pending_ to ready_. It needs no memory.
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

// Draws from all rows of ready_ at once, on the executor's threads. A failure ends the whole request, but
// only after all rows are done, because other completions of the request may be among them.
void EngineCore::take_tokens(std::vector<Event>* events) {
  process_rows();
  executor_->run_tasks(static_cast<int>(ready_.size()), [this](int task, int thread) {
    Draw& mine = ready_[static_cast<size_t>(task)];
    if (mine.error) return;
    try {
      sample(mine, thread);
    } catch (...) {
      mine.error = std::current_exception();
    }
  });
  std::vector<Failure> failures;
  for (Draw& draw : ready_) {
    int64_t id = draw.sequence->id;  // take_token() may end the sequence
    try {
      if (draw.error) std::rethrow_exception(draw.error);
      if (draw.sequence->sampling->beams()) {
        beams_.take(*draw.sequence, std::move(draw.next), *scheduler_);
      } else {
        take_draw(draw, events);
      }
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
  }
  ready_.clear();
  end_failed(failures, events);
  advance_beams(events);
}

// Goes on with the searches all of whose beams have their rows.
void EngineCore::advance_beams(std::vector<Event>* events) {
  std::vector<Failure> failures;
  for (int64_t id : beams_.complete()) {
    try {
      if (beams_.advance(id, *scheduler_)) end_search(id, events);
    } catch (const std::logic_error&) {
      throw;
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
  }
  end_failed(failures, events);
}

// Reports the best answers of a search that is over, and removes its sequences. If it throws, nothing has
// changed.
void EngineCore::end_search(int64_t id, std::vector<Event>* events) {
  const std::vector<BeamAnswer>& answers = beams_.answers(id);
  std::vector<Event> last;
  int32_t sequences = 0;
  size_t wanted = 0;
  double first_token_s = -1;
  scheduler_->for_each([&](const Sequence& sequence) {
    if (sequence.id != id) return;
    sequences = sequence.sampling->sequences();
    wanted = static_cast<size_t>(sequence.sampling->n);
    if (last.empty()) last.assign(std::min(wanted, answers.size()), event_of(sequence));
    first_token_s = sequence.since_arrival();
  });
  if (answers.size() < wanted) {
    throw Error("InvalidRequestError", "[request] a beam search must find n = " + std::to_string(wanted) +
                                           " answers, got " + std::to_string(answers.size()) +
                                           "; forbid fewer tokens, or lower n");
  }
  for (size_t i = 0; i < wanted; ++i) {
    last[i].completion = static_cast<int32_t>(i);
    last[i].tokens = answers[i].tokens;
    last[i].logprobs = answers[i].logprobs;
    last[i].finish = answers[i].finish;
    last[i].stop_token = answers[i].stop_token;
    last[i].cumulative_logprob = answers[i].cumulative_logprob;
    last[i].first_token_s = first_token_s;
  }
  make_room(*events, wanted);
  // Nothing throws from here on.
  Event ended;
  ended.request_id = id;
  ended.finish = finishes::kStop;
  for (; ended.completion < sequences; ++ended.completion) remove(ended);
  for (Event& event : last) {
    generated_ += static_cast<int64_t>(event.tokens.size());
    events->push_back(std::move(event));
  }
}

// Adds a drawn token to its sequence. If the sequence's draft has the same token there, the row behind that
// token is drawn from next; else the rest of the draft is wrong, and is taken back.
void EngineCore::take_draw(Draw& draw, std::vector<Event>* events) {
  Sequence& sequence = *draw.sequence;
  const int32_t token = draw.sample.token;
  bool right = false;
  if (draw.ahead > 0) {
    const auto place = static_cast<int32_t>(sequence.draft.size()) - draw.ahead;
    right = token == sequence.draft[static_cast<size_t>(place)];
    if (!sequence.forced) {
      drafter_->verified(sequence, place, right);
    } else if (right) {
      forced_->verified();
    }
  }
  if (!take_token(sequence, std::move(draw.sample), events)) return;
  if (right) {
    scheduler_->accept(sequence);
    // There is room: the draw of this sequence that was there before has gone to ready_.
    Draw next{&sequence, {draw.row.data() + draw.stride, draw.row.size()}};
    next.ahead = draw.ahead - 1;
    next.stride = draw.stride;
    pending_.push_back(std::move(next));
  } else if (!sequence.draft.empty()) {
    scheduler_->settle(sequence);
  }
}

void EngineCore::end_failed(const std::vector<Failure>& failures, std::vector<Event>* events) {
  for (const Failure& failure : failures) end(failure.id, &failure.error, events);
}

// Runs the requests' own processors on copies of their rows, all at once. An error is that of its draw.
void EngineCore::process_rows() {
  const auto processes = [](const Draw& draw) { return draw.sequence->sampling->processor != nullptr; };
  if (std::ranges::none_of(ready_, processes)) return;
  std::vector<ProcessedRow> rows;
  for (const Draw& draw : ready_) {
    if (!processes(draw)) continue;
    rows.push_back({draw.sequence->sampling->processor.get(), draw.sequence->tokens, nullptr});
    try {
      rows.back().row = std::make_shared<std::vector<float>>(draw.row.begin(), draw.row.end());
    } catch (const std::bad_alloc&) {
      rows.back().error = std::current_exception();
    }
  }
  rows[0].processor->process(rows);
  size_t next = 0;
  for (Draw& draw : ready_) {
    if (!processes(draw)) continue;
    draw.changed = std::move(rows[next].row);
    draw.error = rows[next++].error;
  }
}

// Draws a token from the row, or finds what may follow a beam.
void EngineCore::sample(Draw& draw, int thread) {
  if (draw.token >= 0) {
    draw.sample.token = draw.token;
    return;
  }
  const Sequence& sequence = *draw.sequence;
  Sampler& sampler = samplers_[static_cast<size_t>(thread)];
  const History history{sequence.tokens, sequence.prompt_tokens};
  if (sequence.sampling->beams()) {
    draw.next = sampler.likeliest(draw.row, *sequence.sampling, history);
    return;
  }
  std::span<const uint32_t> mask;
  if (draw.mask) mask = *draw.mask;
  std::span<const float> changed;
  if (draw.changed) changed = *draw.changed;
  draw.sample =
      sampler.sample(draw.row, *sequence.sampling, sequence.seed, sequence.size(), history, mask, changed);
}

// Reports the logprobs of the sequence's next `rows` prompt positions. Their logits begin at row `row`.
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

// Adds up the rows of a chunk of a request that pools, or, at the last position, reports the result and
// removes the sequence. The sum of each column is in float64 and in the order of the positions, one after the
// other, so that chunks, company and preemption change none of its bits. If it throws, nothing has changed.
void EngineCore::pool(const WantedRows& wanted, const LogitRows& logits, int32_t row,
                      std::vector<Event>* events) {
  Sequence& sequence = *wanted.sequence;
  const Sampling& sampling = *sequence.sampling;
  std::vector<double>& sums = sequence.pooled_sums;
  const auto columns = static_cast<size_t>(facts().columns());
  const bool mean = sampling.pooling == Pooling::mean, last = wanted.drawn > 0;
  if (mean) sums.resize(columns);
  Event event;
  if (last) {
    sequence.first_token_s = sequence.since_arrival();
    event = event_of(sequence);
    event.pooled.resize(sampling.pooled_columns.empty() ? columns : sampling.pooled_columns.size());
    make_room(*events, 1);
  }
  // Nothing throws from here on: the names of a finish are short.
  for (int32_t i = 0; i < wanted.prompt; ++i) {
    const std::span<const float> values = this->values(logits, row + i);
    for (size_t j = 0; j < columns; ++j) sums[j] += values[j];
  }
  sequence.scored += wanted.prompt;
  if (!last) return;
  const std::span<const float> values = this->values(logits, row + wanted.prompt);
  for (size_t i = 0; i < event.pooled.size(); ++i) {
    const size_t j = sampling.pooled_columns.empty() ? i : static_cast<size_t>(sampling.pooled_columns[i]);
    event.pooled[i] = mean ? static_cast<float>((sums[j] + values[j]) / sequence.prompt_tokens) : values[j];
  }
  event.finish = finishes::kStop;
  events->push_back(std::move(event));
  remove(events->back());
}

// Adds a drawn token to its sequence and reports it. Returns whether the sequence goes on. If it throws,
// nothing has changed.
bool EngineCore::take_token(Sequence& sequence, Sample sample, std::vector<Event>* events) {
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
  if (event.finish == finishes::kStop) event.stop_token = sample.token;
  events->push_back(std::move(event));
  if (events->back().finish.empty()) return true;
  remove(events->back());
  return false;
}

}  // namespace tensorwright
