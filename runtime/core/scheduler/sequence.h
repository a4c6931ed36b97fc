// Holds one completion of a request while it lives: the tokens, how far they are in the cache, and their
// blocks.
#ifndef TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
#define TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/base/clock.h"
#include "runtime/core/cache/kv_blocks.h"
#include "runtime/core/scheduler/request.h"

namespace tensorwright {

// All of a sequence but its blocks, which cannot be copied because they are counted.
struct SequenceState {
  int64_t id = 0;          // the request's id
  int32_t completion = 0;  // the number of the completion in its request
  int32_t forks = 0;       // completions that fork off this one once its prompt is computed
  uint64_t arrival = 0;    // the order of submission; the scheduler sets it
  int32_t priority = 0;    // the request's, or a higher one after a long wait; the scheduler sets it
  int32_t charged = 0;     // leading tokens that the tenant was charged for, or that were there already
  // [prompt + generated]. The last one is below 0 while the executor knows the token and the engine does not:
  // -1 - r, where r is its row in the step that is underway.
  std::vector<int32_t> tokens;
  int32_t prompt_tokens = 0;
  // The number of leading tokens whose blocks other sequences may share (base/sparse_prefill.h).
  int32_t shareable = std::numeric_limits<int32_t>::max();
  std::shared_ptr<const Sampling> sampling;  // the request's
  uint64_t seed = 0;

  int32_t computed = 0;  // leading tokens whose keys and values are in the cache
  // The number of leading prompt positions whose rows were reported or added up; at least `computed` while
  // scoring.
  int32_t scored = 0;
  // With Pooling::mean: the sums of the rows of the leading `scored` positions, in the order of the
  // positions.
  std::vector<double> pooled_sums;
  // A beam whose next token waits for the other beams, or one that nothing followed: it does not start.
  bool parked = false;
  // Blocks of its prefix are on their way into the cache: it does not start, and others pass it.
  bool fetching = false;
  bool asked = false;  // since its last start, it was asked whether blocks of its prefix are elsewhere
  int32_t starts = 0;  // how often it was admitted
  int32_t tokens_when_admitted = 0;  // size() is larger once the sequence got a token since its last start
  // The ends of the prefixes whose states are to be kept, which chunks end at: where the sequence leaves what
  // the prefix tree remembers, and the last end of a block before the last token. Set at each start; 0: none.
  std::array<int32_t, 2> snapshot_ends = {};
  // Within a step: the tokens that are computed behind `tokens` because a proposer thinks that they come
  // next, or a grammar forces them. Their keys and values are in the cache behind `computed`. Empty between
  // two steps.
  std::vector<int32_t> draft;
  bool forced = false;                // whether a grammar forces all of the draft: nobody has guessed it
  int32_t drafted = 0, accepted = 0;  // proposed tokens of all steps, and those that were right
  int32_t cached_tokens = -1;         // prompt tokens from the prefix cache at the first start; -1: not
                                      // started

  Clock::time_point arrived;
  Clock::time_point deadline = Clock::time_point::max();  // the end of timeout_s
  Clock::time_point must_end = Clock::time_point::max();  // the end of deadline_s
  double queue_s = -1, first_token_s = -1;

  // Compares in the order in which sequences start. Sequences are preempted in the reverse order.
  bool before(const SequenceState& other) const {
    if (priority != other.priority) return priority > other.priority;
    return arrival != other.arrival ? arrival < other.arrival : completion < other.completion;
  }
  double since_arrival() const { return seconds_since(arrived); }
  // Returns how many places of max_seqs the sequence takes: its own, and those that are kept free for its
  // forks.
  int32_t places() const { return 1 + forks; }
  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  // Returns whether the last token is drawn and not known yet.
  bool awaits_token() const { return !tokens.empty() && tokens.back() < 0; }
  int32_t generated() const { return size() - prompt_tokens; }
  // Returns how many tokens must be computed before the next one can be sampled: 1 while decoding.
  int32_t pending() const { return size() - computed; }
  bool decodes() const { return pending() == 1 && generated() > 0; }
  // Returns how many tokens may be computed before the states must be kept.
  int32_t until_snapshot() const {
    int32_t least = INT32_MAX;
    for (int32_t end : snapshot_ends) least = end > computed ? std::min(least, end - computed) : least;
    return least;
  }
  bool at_snapshot_end() const {
    return computed > 0 && std::ranges::find(snapshot_ends, computed) != snapshot_ends.end();
  }

  // Returns whether rows of prompt positions are still wanted: their logprobs are to be reported, or they are
  // to be added up. A recompute after a preemption reports or adds none twice.
  bool scoring() const {
    const bool wanted = sampling->prompt_logprobs >= 0 || sampling->pooling == Pooling::mean;
    return wanted && scored < prompt_tokens - 1;
  }
  // Returns how many of the next `count` tokens are prompt positions to report: those from `scored` on. The
  // last position of the prompt is not among them, because its row is sampled from.
  int32_t prompt_rows(int32_t count) const {
    return scoring() ? std::max(0, std::min(computed + count, prompt_tokens - 1) - scored) : 0;
  }
  // Returns the most pending tokens that need at most `rows` prompt rows.
  int32_t pending_within(int32_t rows) const {
    bool enough = !scoring() || rows >= prompt_tokens - 1 - scored;
    return enough ? pending() : scored + rows - computed;
  }
  // Returns the tokens that may come from the prefix cache, and one behind them, which a match leaves: none
  // while scoring, because reported positions must be computed.
  std::span<const int32_t> reusable() const {
    const bool all = size() <= shareable;
    return std::span(tokens).first(scoring() ? 0 : static_cast<size_t>(all ? size() : shareable + 1));
  }
  // Returns the computed tokens that the prefix cache may remember.
  std::span<const int32_t> publishable() const {
    return std::span(tokens).first(static_cast<size_t>(std::min(computed, shareable)));
  }
};

struct Sequence : SequenceState {
  SequenceBlocks blocks;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_SEQUENCE_H_
