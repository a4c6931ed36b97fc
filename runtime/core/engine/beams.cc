#include "runtime/core/engine/beams.h"

#include <algorithm>

#include "runtime/core/base/make_room.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

Beams::Search& Beams::open(Sequence& first, Scheduler& scheduler) {
  const Sampling& sampling = *first.sampling;
  const int32_t longest = std::min(sampling.max_tokens, max_seq_len_ - first.prompt_tokens);
  Search search{BeamSearch(sampling, longest), {{&first}}, {}, {}};
  search.spare.reserve(static_cast<size_t>(sampling.beam_width));
  search.beams.reserve(static_cast<size_t>(sampling.beam_width));
  Search& opened = searches_.emplace(first.id, std::move(search)).first->second;
  try {
    for (Sequence* other : scheduler.fork(first)) opened.spare.push_back(other);
  } catch (...) {
    searches_.erase(first.id);
    throw;
  }
  return opened;
}

void Beams::take(Sequence& sequence, std::vector<NextToken> next, Scheduler& scheduler) {
  const auto found = searches_.find(sequence.id);
  Search& search = found == searches_.end() ? open(sequence, scheduler) : found->second;
  const auto beam = std::ranges::find(search.beams, &sequence, &Beam::sequence);
  // A beam that was computed again has the same row as before.
  if (beam == search.beams.end() || beam->ready) return;
  beam->next = std::move(next);
  beam->ready = true;
  sequence.parked = true;
}

std::vector<int64_t> Beams::complete() const {
  std::vector<int64_t> ids;
  for (const auto& [id, search] : searches_)
    if (std::ranges::all_of(search.beams, &Beam::ready)) ids.push_back(id);
  return ids;
}

const NextToken& Beams::chosen(const Search& search, const Continuation& continuation) {
  const std::vector<NextToken>& next = search.beams[static_cast<size_t>(continuation.beam)].next;
  return *std::ranges::find(next, continuation.token, &NextToken::token);
}

BeamAnswer Beams::answer(const Search& search, const Continuation& last) const {
  const Sequence& sequence = *search.beams[static_cast<size_t>(last.beam)].sequence;
  const Sampling& sampling = *sequence.sampling;
  BeamAnswer answer;
  answer.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  answer.tokens.push_back(last.token);
  const bool stops = ends_sequence(sampling, last.token);
  answer.finish = stops ? finishes::kStop : finishes::kLength;
  if (stops) answer.stop_token = last.token;
  if (sampling.logprobs < 0) return answer;
  answer.logprobs.push_back(chosen(search, last).logprobs);
  int32_t place = last.beam;
  for (auto links = search.links.rbegin(); links != search.links.rend(); ++links) {
    const Link& link = (*links)[static_cast<size_t>(place)];
    answer.logprobs.push_back(link.logprobs);
    place = link.before;
  }
  std::ranges::reverse(answer.logprobs);
  return answer;
}

bool Beams::advance(int64_t id, Scheduler& scheduler) {
  Search& search = searches_.at(id);
  const Sampling& sampling = *search.beams[0].sequence->sampling;
  std::vector<Continuation> all;
  for (size_t place = 0; place < search.beams.size(); ++place) {
    const Beam& beam = search.beams[place];
    for (const NextToken& next : beam.next)
      all.push_back({static_cast<int32_t>(place), next.token, beam.score + next.logprob});
  }
  const std::vector<Continuation> next = search.search.advance(
      std::move(all), search.length + 1, [&](int32_t token) { return ends_sequence(sampling, token); },
      [&](const Continuation& last) { return answer(search, last); });
  if (next.empty()) return true;
  if (sampling.logprobs >= 0) {
    std::vector<Link> links;
    for (const Continuation& one : next) links.push_back({one.beam, chosen(search, one).logprobs});
    search.links.push_back(std::move(links));
  }
  follow(search, next, scheduler);
  ++search.length;
  return false;
}

// Gives each of the next beams a sequence: that of the beam that it follows, or, if another has that already,
// one that is left over, which takes the tokens and blocks of it.
void Beams::follow(Search& search, const std::vector<Continuation>& next, Scheduler& scheduler) {
  std::vector<Beam> beams;
  std::vector<bool> goes_on(search.beams.size(), false);
  for (const Continuation& one : next) {
    const auto place = static_cast<size_t>(one.beam);
    beams.push_back({goes_on[place] ? nullptr : search.beams[place].sequence, one.score});
    goes_on[place] = true;
  }
  std::vector<Sequence*> free = search.spare;
  for (size_t place = 0; place < search.beams.size(); ++place)
    if (!goes_on[place]) free.push_back(search.beams[place].sequence);
  for (size_t i = 0; i < next.size(); ++i) {
    if (beams[i].sequence) continue;
    // One that runs has its blocks at once; the others are there from earlier steps with fewer beams.
    beams[i].sequence = free.back();
    free.pop_back();
    scheduler.follow(*beams[i].sequence, *search.beams[static_cast<size_t>(next[i].beam)].sequence);
  }
  for (const Beam& beam : beams) make_room(beam.sequence->tokens, 1);
  for (size_t i = 0; i < next.size(); ++i) {
    beams[i].sequence->tokens.push_back(next[i].token);
    beams[i].sequence->parked = false;
  }
  for (Sequence* left : free) scheduler.put_aside(*left);
  search.beams = std::move(beams);
  search.spare = std::move(free);
}

}  // namespace tensorwright
