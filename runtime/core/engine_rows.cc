// EngineCore's last part of a step: from logit rows to logprobs, tokens and events.
#include <algorithm>

#include "runtime/core/engine_core.h"

namespace tensorwright {

namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

// Why the sequence is done after its last token, "" if it is not.
const char* finish_reason(const Sequence& sequence, int32_t max_seq_len) {
  const Sampling& s = sequence.sampling;
  int32_t token = sequence.tokens.back();
  if (contains(s.stop_token_ids, token) || (!s.ignore_eos && contains(s.eos_token_ids, token))) return "stop";
  if (sequence.generated() >= s.max_tokens || sequence.size() >= max_seq_len) return "length";
  return "";
}

}  // namespace

std::span<const float> EngineCore::values(const LogitRows& logits, int32_t row) const {
  return {logits.data + row * logits.stride, static_cast<size_t>(facts().vocab_size)};
}

// A sequence that others fork off gives its row to all of them. A failure ends the whole request, after all
// rows: others of it may be among them.
void EngineCore::take_rows(const std::vector<WantedRows>& wanted, const LogitRows& logits,
                           std::vector<Event>* events) {
  std::vector<Failure> failures;
  std::vector<std::optional<Drawn>> drawn = draw_rows(wanted, logits);
  int32_t row = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto [sequence, prompt, sampled] = wanted[i];
    int64_t id = sequence->id;  // it may be gone in the next line
    try {
      take_prompt_logprobs(*sequence, logits, row, prompt, events);
      if (sampled)
        take_tokens(*sequence, values(logits, row + prompt), std::move(drawn[i]), events, &failures);
    } catch (const std::exception& error) {
      failures.push_back({id, as_error(error)});
    }
    row += prompt + sampled;
  }
  for (const Failure& failure : failures) end(failure.id, &failure.error, events);
}

// Samples from all rows at once, on the executor's threads; not from a row that others fork off.
std::vector<std::optional<EngineCore::Drawn>> EngineCore::draw_rows(const std::vector<WantedRows>& wanted,
                                                                    const LogitRows& logits) {
  std::vector<std::optional<Drawn>> drawn(wanted.size());
  std::vector<std::pair<size_t, int32_t>> tasks;  // index in wanted, row
  int32_t row = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    row += wanted[i].prompt + wanted[i].sampled;
    if (wanted[i].sampled && wanted[i].sequence->forks == 0) tasks.emplace_back(i, row - 1);
  }
  executor_->run_tasks(static_cast<int>(tasks.size()), [&](int task, int thread) {
    auto [i, at] = tasks[static_cast<size_t>(task)];
    Drawn& mine = drawn[i].emplace();
    try {
      mine.sample = sample(*wanted[i].sequence, values(logits, at), thread);
    } catch (...) {
      mine.error = std::current_exception();
    }
  });
  return drawn;
}

Sample EngineCore::sample(const Sequence& sequence, std::span<const float> logits, int thread) {
  return samplers_[static_cast<size_t>(thread)].sample(
      logits, sequence.sampling, sequence.seed, sequence.size(), {sequence.tokens, sequence.prompt_tokens});
}

// Tells of the sequence's next `rows` prompt positions, whose logits are from `row` on.
void EngineCore::take_prompt_logprobs(Sequence& sequence, const LogitRows& logits, int32_t row, int32_t rows,
                                      std::vector<Event>* events) {
  if (rows == 0) return;
  Event event = event_of(sequence);
  for (int32_t i = 0; i < rows; ++i) {
    int32_t next = sequence.tokens[sequence.scored + i + 1];
    event.prompt_logprobs.push_back(
        samplers_[0].score(values(logits, row + i), next, sequence.sampling.prompt_logprobs));
  }
  sequence.scored += rows;
  events->push_back(std::move(event));
}

// drawn: what the row gave, if it was sampled from already. Throws what the sampler threw, before anything
// else happens.
void EngineCore::take_tokens(Sequence& first, std::span<const float> logits, std::optional<Drawn> drawn,
                             std::vector<Event>* events, std::vector<Failure>* failures) {
  if (drawn) {
    if (drawn->error) std::rethrow_exception(drawn->error);
    return take_token(first, std::move(drawn->sample), events);
  }
  std::vector<Sequence*> sequences = scheduler_->fork(first);
  for (Sequence* fork : sequences) fork->seed = completion_seed(fork->seed, fork->completion);
  sequences.insert(sequences.begin(), &first);
  for (Sequence* sequence : sequences) {
    int64_t id = sequence->id;  // it may be gone in the next line
    try {
      take_token(*sequence, sample(*sequence, logits, 0), events);
    } catch (const std::exception& error) {
      failures->push_back({id, as_error(error)});
    }
  }
}

void EngineCore::take_token(Sequence& sequence, Sample sample, std::vector<Event>* events) {
  sequence.tokens.push_back(sample.token);
  ++generated_;
  if (sequence.first_token_s < 0) sequence.first_token_s = sequence.since_arrival();
  Event event = event_of(sequence);
  event.tokens = {sample.token};
  if (sequence.sampling.logprobs >= 0) event.logprobs.push_back(std::move(sample.logprobs));
  event.finish = finish_reason(sequence, facts().max_seq_len);
  if (event.finish == "stop") event.stop_token = sample.token;
  events->push_back(std::move(event));
  if (events->back().finish.empty()) return;
  count(sequence.id, 1, &finished_);
  scheduler_->remove(sequence.id, sequence.completion);
}

}  // namespace tensorwright
