#include "runtime/core/speculation/length_policy.h"

#include <algorithm>
#include <array>

#include "runtime/core/speculation/proposer.h"

namespace tensorwright {

namespace {

// What a token of before counts beside the newest one.
constexpr double kMemory = 0.95;
// What is known of all sequences counts as much as so many tokens of one sequence.
constexpr double kPriorTokens = 4;
// Before anything is known, three of four tokens are thought to be right, as if so many had been tried: a few
// proposals that do not pay cost little, and nothing is learnt without them.
constexpr double kFirstLikelihood = 0.75, kFirstTried = 2;
constexpr double kHighest = 0.98;
// A longer proposal must promise so much more than it costs, because both are estimates.
constexpr double kMargin = 1.05;
// What proposals are thought to save at least, as a share of the time, when a start is weighed.
constexpr double kLeastSaved = 0.01;
// The length of a probe.
constexpr int32_t kProbe = 2;

}  // namespace

void Acceptance::observe(bool right, bool first) {
  right_ = kMemory * right_ + (right ? 1 : 0);
  tried_ = kMemory * tried_ + 1;
  if (first) pause_ = right ? kFirstPause : std::min(2 * pause_, kLongestPause);
}

double Acceptance::likelihood(const Acceptance& all) const {
  const double prior = (all.right_ + kFirstTried * kFirstLikelihood) / (all.tried_ + kFirstTried);
  return std::min(kHighest, (right_ + kPriorTokens * prior) / (tried_ + kPriorTokens));
}

bool Acceptance::probes() {
  if (++waited_ < pause_) return false;
  waited_ = 0;
  return true;
}

void LengthPolicy::Share::add(bool was_right) {
  right = kMemory * right + (was_right ? 1 : 0);
  tried = kMemory * tried + 1;
}

void LengthPolicy::observe(Acceptance* acceptance, bool right, int32_t place, bool sampled) {
  acceptance->observe(right, place == 0);
  all_[sampled].observe(right, place == 0);
  places_[static_cast<size_t>(place)].add(right);
  overall_.add(right);
}

// Returns how likely a token at `place` is right, given that those before it are, of a sequence whose
// proposals are right so often at all places together.
double LengthPolicy::at_place(double likelihood, int32_t place) const {
  if (overall_.tried < kPriorTokens) return likelihood;
  const double rate = std::max(overall_.right / overall_.tried, 0.05);
  const Share& share = places_[static_cast<size_t>(place)];
  const double here = (share.right + kPriorTokens * rate) / (share.tried + kPriorTokens);
  return std::min(kHighest, likelihood * here / rate);
}

bool LengthPolicy::worth_starting(double start, int32_t left, int32_t tokens, const Price& price,
                                  int32_t tried, bool sampled) {
  if (fixed_ > 0 || start <= 0) return true;
  const double plain = cost_.seconds(tokens), likelihood = all_[sampled].likelihood(all_[sampled]);
  double saved = kLeastSaved, made = 1, reached = 1;
  for (int32_t length = 1; length <= kMaxDraft; ++length) {
    made += reached *= at_place(likelihood, length - 1);
    const double seconds = cost_.seconds(tokens + length) + length * price(1);
    if (plain > 0) saved = std::max(saved, 1 - seconds / plain / made);
  }
  if (start <= saved * left * plain) return true;
  if (++refused_ < tried) return false;
  refused_ = 0;
  return true;
}

// Adds one token at a time where it is likeliest to be right, as long as tokens per second grow. A step of
// twice the tokens may cost as much as one, so the search looks on behind a token that does not pay by
// itself, and keeps the best.
void LengthPolicy::decide(std::span<Candidate> candidates, int32_t tokens, int32_t room, const Price& price) {
  if (fixed_ > 0) {
    for (Candidate& c : candidates) room -= c.length = std::min({fixed_, c.most, room});
    return;
  }
  struct Growing {
    double likelihood, reached;
  };
  std::vector<Growing> growing;
  for (const Candidate& c : candidates) growing.push_back({c.acceptance->likelihood(all_[c.sampled]), 1.0});
  double expected = static_cast<double>(candidates.size());
  double best = expected / std::max(cost_.seconds(tokens), 1e-9) * kMargin;
  std::vector<int32_t> lengths(candidates.size(), 0), chosen = lengths;
  std::array<int32_t, kMaxDraft + 1> as_long = {};  // the sequences that get so many tokens, or more
  double proposing = 0;
  for (int32_t added = 1; added <= room; ++added) {
    size_t next = candidates.size();
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (lengths[i] >= candidates[i].most) continue;
      auto gain = [&](size_t j) { return growing[j].reached * at_place(growing[j].likelihood, lengths[j]); };
      if (next == candidates.size() || gain(i) > gain(next)) next = i;
    }
    if (next == candidates.size()) break;
    growing[next].reached *= at_place(growing[next].likelihood, lengths[next]);
    expected += growing[next].reached;
    int32_t& sequences = as_long[static_cast<size_t>(++lengths[next])];
    if (price) proposing += price(sequences + 1) - (sequences > 0 ? price(sequences) : 0);
    ++sequences;
    const double seconds = cost_.seconds(tokens + added) + proposing;
    if (const double rate = expected / std::max(seconds, 1e-9); rate > best) best = rate, chosen = lengths;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& c = candidates[i];
    c.length = chosen[i];
    if (c.length == 0 && c.most > 0 && c.acceptance->probes()) c.length = std::min(c.most, kProbe);
  }
}

}  // namespace tensorwright
