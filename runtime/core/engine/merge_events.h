// Joins two events of one completion, so that what nobody has fetched yet is one event.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_MERGE_EVENTS_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_MERGE_EVENTS_H_

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/core/base/make_room.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

namespace merge_events_detail {

// Puts the elements of `list` before those of `later`, and the result into `list`, which must have room.
template <typename T>
void join(std::vector<T>& list, std::vector<T>* later) {
  std::ranges::move(*later, std::back_inserter(list));
  later->swap(list);
}

}  // namespace merge_events_detail

// Merges a later event into the event of the same completion that nobody has fetched yet. If it throws,
// nothing has changed.
inline void merge_event(Event&& later, Event* event) {
  using merge_events_detail::join;
  make_room(event->tokens, later.tokens.size());
  make_room(event->logprobs, later.logprobs.size());
  make_room(event->prompt_logprobs, later.prompt_logprobs.size());
  join(event->tokens, &later.tokens);
  join(event->logprobs, &later.logprobs);
  join(event->prompt_logprobs, &later.prompt_logprobs);
  *event = std::move(later);  // a pooled row comes in the last event alone, so that none is lost
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_MERGE_EVENTS_H_
