#include "runtime/core/speculation/ngram_proposer.h"

#include <algorithm>

namespace tensorwright {

namespace {

// A long prompt is added in parts, so that no step waits for all of it: about a millisecond for each part.
constexpr int32_t kTokensOfAStep = 8192;

}  // namespace

void NgramProposer::propose(std::span<const DraftWish> wishes, std::vector<std::vector<int32_t>>* drafts) {
  int32_t left = kTokensOfAStep;
  if (outputs_) left -= outputs_->digest(left / 2);
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].sequence;
    MatchIndex& index = indexes_[{sequence.id, sequence.completion}];
    for (; index.size() < sequence.size() && left > 0; --left) index.add(sequence.tokens[index.size()]);
    const Match match = index.find(sequence.tokens, least_);
    if (outputs_) {
      const OutputStore::Found said = outputs_->find(sequence.sampling->cache_salt, sequence.tokens,
                                                     std::max(least_ + 1, match.length + 1));
      if (said.length > 0) {
        const size_t count = std::min(said.next.size(), static_cast<size_t>(wishes[i].most));
        (*drafts)[i].assign(said.next.begin(), said.next.begin() + static_cast<std::ptrdiff_t>(count));
        continue;
      }
    }
    if (match.next < 0) continue;
    // Where the text ends, the draft goes on with itself: a text that repeats its last tokens goes on so.
    std::vector<int32_t>& draft = (*drafts)[i];
    for (int32_t from = match.next; from < match.next + wishes[i].most; ++from) {
      const int32_t beyond = from - index.size();
      draft.push_back(beyond < 0 ? index.tokens()[from] : draft[beyond]);
    }
  }
}

void NgramProposer::forget(const Sequence& sequence) {
  indexes_.erase({sequence.id, sequence.completion});
  if (outputs_) outputs_->remember(sequence);
}

}  // namespace tensorwright
