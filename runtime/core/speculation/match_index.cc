#include "runtime/core/speculation/match_index.h"

#include <algorithm>
#include <utility>

#include "runtime/core/base/make_room.h"

namespace tensorwright {

void MatchIndex::add(int32_t token) {
  make_room(tokens_, 1);
  make_room(starts_, 1);
  make_room(before_, 1);
  int32_t before = -1;
  if (size() > begin_) {
    auto [at, is_new] = latest_.try_emplace(pair(tokens_.back(), token), size());
    if (!is_new) before = std::exchange(at->second, size());
  }
  // Nothing throws from here on.
  tokens_.push_back(token);
  starts_.push_back(begin_);
  before_.push_back(before);
}

Match MatchIndex::find(std::span<const int32_t> text, int32_t least) const {
  Match best;
  if (text.size() < 2 || least < 2) return best;
  const auto length = static_cast<int32_t>(text.size());
  auto latest = latest_.find(pair(text[text.size() - 2], text[text.size() - 1]));
  if (latest == latest_.end()) return best;
  int32_t place = latest->second;
  for (int32_t looked = 0; place >= 0 && looked < kCandidates; ++looked, place = before_[place]) {
    if (place + 1 >= size() || starts_[place + 1] != starts_[place]) continue;  // nothing is behind it
    const int32_t most = std::min({kLongest, length, place - starts_[place] + 1});
    int32_t equal = 2;
    while (equal < most && tokens_[place - equal] == text[length - 1 - equal]) ++equal;
    if (equal >= least && equal > best.length) best = {place + 1, equal};
    if (equal == kLongest) break;
  }
  return best;
}

std::span<const int32_t> MatchIndex::behind(const Match& match) const {
  if (match.next < 0) return {};
  const auto from = static_cast<size_t>(match.next);
  const auto end = std::ranges::upper_bound(starts_, starts_[from]) - starts_.begin();
  return tokens().subspan(from, static_cast<size_t>(end) - from);
}

}  // namespace tensorwright
