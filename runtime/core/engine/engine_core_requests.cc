// How requests come into the engine's books and leave them: they are added, end, are aborted, and run out of
// time.
#include <algorithm>
#include <new>
#include <random>
#include <stdexcept>
#include <utility>

#include "runtime/core/base/make_room.h"
#include "runtime/core/base/sparse_prefill.h"
#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

namespace {

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Clock::time_point deadline(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

void EngineCore::add(Request request, Clock::time_point arrived) {
  if (request.sampling.guided && !masks_)
    throw std::logic_error("[engine] a guided request needs a source of masks");
  auto sequence = std::make_unique<Sequence>();
  const int64_t id = sequence->id = request.id;
  sequence->tokens = std::move(request.prompt);
  const int32_t prompt_tokens = sequence->prompt_tokens = sequence->size();
  sequence->shareable = shareable_tokens(prompt_tokens, facts().sparse_prefill, kv_->block_size());
  request.sampling.cache_salt = prefix_salt(request.sampling);
  const Sampling& sampling =
      *(sequence->sampling = std::make_shared<const Sampling>(std::move(request.sampling)));
  sequence->seed = sampling.seed ? *sampling.seed : random_seed();
  sequence->forks = sampling.sequences() - 1;
  sequence->arrived = arrived;
  if (sampling.timeout_s >= 0) sequence->deadline = deadline(arrived, sampling.timeout_s);
  if (sampling.deadline_s >= 0) sequence->must_end = deadline(arrived, sampling.deadline_s);
  const auto open = open_.emplace(request.id, sampling.sequences()).first;
  try {
    scheduler_->add(std::move(sequence));
  } catch (...) {
    open_.erase(open);
    throw;
  }
  ++added_;
  if (!timeline_) return;
  const int64_t at = Timeline::nanoseconds(arrived);
  Span span{at, at, id, SpanKind::kArrived};
  span.a = prompt_tokens;
  timeline_->add(span);
}

void EngineCore::add_or_fail(Request request, Clock::time_point arrived, std::vector<Event>* events) {
  Event event;
  event.request_id = request.id;
  event.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  const int32_t completions = request.sampling.n;
  try {
    add(std::move(request), arrived);
  } catch (const std::bad_alloc& error) {
    const Error typed = as_error(error);
    event.finish = finishes::kError;
    event.error_type = typed.type();
    event.error = typed.what();
    for (; event.completion < completions; ++event.completion) events->push_back(event);
    ++added_;
    ++failed_;
  }
}

Event EngineCore::event_of(const Sequence& sequence) const {
  Event event;
  event.request_id = sequence.id;
  event.completion = sequence.completion;
  event.prompt_tokens = sequence.prompt_tokens;
  event.cached_tokens = std::max(sequence.cached_tokens, 0);
  event.draft_tokens = sequence.drafted;
  event.accepted_tokens = sequence.accepted;
  event.queue_s = sequence.queue_s;
  event.first_token_s = sequence.first_token_s;
  return event;
}

void EngineCore::end(int64_t id, const Error* error, std::vector<Event>* events) {
  close([&](const Sequence& sequence) { return sequence.id == id; },
        error ? finishes::kError : finishes::kAbort, error, events);
}

void EngineCore::end_completion(int64_t id, int32_t completion, std::vector<Event>* events) {
  const Name name(id, completion);
  // The completions of a beam search come into being together, at its end.
  auto started = [&](const Sequence& s) {
    return Name(s.id, s.completion) == name && !s.sampling->beams() && (s.forks == 0 || s.generated() > 0);
  };
  close(started, finishes::kAbort, nullptr, events);
}

// Ends all the sequences that `wanted` chooses. If there is no memory for their events, it ends none and
// throws. Forks that have not started yet end with the sequence that they would come from. Of a beam search
// only the n completions that were asked for have events.
void EngineCore::close(const std::function<bool(const Sequence&)>& wanted, const char* finish,
                       const Error* error, std::vector<Event>* events) {
  std::vector<Event> last;
  std::vector<bool> told;  // [last]
  scheduler_->for_each([&](const Sequence& sequence) {
    if (!wanted(sequence)) return;
    Event event = event_of(sequence);
    event.finish = finish;
    if (error) {
      event.error_type = error->type();
      event.error = error->what();
    }
    const auto add = [&] {
      last.push_back(event);
      told.push_back(event.completion < sequence.sampling->n);
    };
    add();
    for (int32_t completion = 1; completion <= sequence.forks; ++completion) {
      event.completion = completion;
      add();
    }
  });
  make_room(*events, last.size());
  // Nothing throws from here on.
  for (size_t i = 0; i < last.size(); ++i) {
    remove(last[i]);
    if (told[i]) events->push_back(std::move(last[i]));
  }
}

// Removes the completion from all books; `last` is its last event.
void EngineCore::remove(const Event& last) {
  if (timeline_) {
    const int64_t now = Timeline::now();
    timeline_->add({now, now, last.request_id, SpanKind::kEnded, last.completion});
  }
  const std::unique_ptr<Sequence> sequence = scheduler_->remove(last.request_id, last.completion);
  if (sequence) std::erase_if(pending_, [&](const Draw& draw) { return draw.sequence == sequence.get(); });
  if (sequence) leave_steps(*sequence);
  if (sequence && drafter_) drafter_->forget(*sequence);
  if (sequence && sequence->sampling->beams()) beams_.forget(last.request_id);
  count(last.request_id, 1,
        last.finish == finishes::kError     ? &failed_
        : last.finish == finishes::kAbort   ? &aborted_
        : last.finish == finishes::kTimeout ? &timed_out_
                                            : &finished_);
}

// A request is counted once: the end of its last completion decides in which counter.
void EngineCore::count(int64_t id, int32_t ended, int64_t* counter) {
  auto open = open_.find(id);
  if ((open->second -= ended) > 0) return;
  open_.erase(open);
  ++*counter;
}

void EngineCore::end_all(std::vector<Event>* events) {
  close([](const Sequence&) { return true; }, finishes::kAbort, nullptr, events);
}

void EngineCore::expire(Clock::time_point now, std::vector<Event>* events) {
  close([&](const Sequence& sequence) { return sequence.deadline <= now; }, finishes::kTimeout, nullptr,
        events);
  if (fetches_ && fetches_->stalled(now)) scheduler_->stop_fetching();
  std::vector<std::pair<int64_t, double>> late;  // requests, and the deadlines that they were given
  scheduler_->for_each([&](const Sequence& sequence) {
    if (is_late(sequence, now)) late.emplace_back(sequence.id, sequence.sampling->deadline_s);
  });
  for (const auto& [id, given] : late) {
    if (!open_.contains(id)) continue;  // another of its completions was late too
    const Error error(
        "DeadlineError",
        "[request] a request must end by its deadline, " + std::to_string(given) +
            " s after its arrival, and this one cannot any more; allow it more time, or ask for "
            "fewer tokens");
    end(id, &error, events);
    ++late_;
  }
}

// Returns whether a sequence cannot end by its deadline any more: even if all its steps were as fast as the
// fastest that there were, and the prefix cache had what it may have.
bool EngineCore::is_late(const Sequence& sequence, Clock::time_point now) const {
  if (sequence.must_end == Clock::time_point::max()) return false;
  const double left = std::chrono::duration<double>(sequence.must_end - now).count();
  if (left <= 0) return true;
  // Of a sequence that waits, all but the last token may be in the cache.
  const int32_t prompt = sequence.computed > 0 || !kv_->remembers() ? sequence.pending() : 1;
  const int32_t tokens = std::max(1, sequence.sampling->min_tokens);
  const int32_t drawn = drafter_ ? 0 : std::max(0, tokens - sequence.generated() - 1);
  return fastest_.least(prompt, drawn) > left;
}

Clock::time_point EngineCore::next_deadline() const {
  Clock::time_point first = fetches_ ? fetches_->stalls_at() : Clock::time_point::max();
  scheduler_->for_each(
      [&](const Sequence& sequence) { first = std::min({first, sequence.deadline, sequence.must_end}); });
  return first;
}

}  // namespace tensorwright
