#include "runtime/core/sampling/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace tensorwright {

namespace {

// Among equal scores, the better beam and then the lower token is first.
bool before(const Continuation& a, const Continuation& b) {
  if (a.score != b.score) return a.score > b.score;
  return std::tie(a.beam, a.token) < std::tie(b.beam, b.token);
}

}  // namespace

BeamSearch::BeamSearch(const Sampling& sampling, int32_t longest)
    : width_(static_cast<size_t>(sampling.beam_width)),
      length_penalty_(sampling.length_penalty),
      early_stopping_(sampling.early_stopping),
      longest_(longest) {}

std::vector<Continuation> BeamSearch::advance(std::vector<Continuation> all, int32_t length, const Ends& ends,
                                              const Make& make) {
  std::ranges::sort(all, before);
  std::vector<Continuation> next;
  for (size_t i = 0; i < all.size(); ++i) {
    if (length >= longest_ || ends(all[i].token)) {
      if (i < width_) add(make(all[i]), all[i].score, length);
    } else if (next.size() < width_) {
      next.push_back(all[i]);
    }
  }
  if (!next.empty() && over(next.front().score, length)) next.clear();
  return next;
}

bool BeamSearch::over(double best_running, int32_t length) const {
  if (answers_.size() < width_) return false;
  if (early_stopping_ == EarlyStopping::yes) return true;
  const bool longest = early_stopping_ == EarlyStopping::never && length_penalty_ > 0;
  const double reached = best_running / std::pow(longest ? longest_ : length, length_penalty_);
  return reached <= answers_.back().score;
}

// Puts an answer behind those that are as good, and drops the worst if there are too many.
void BeamSearch::add(BeamAnswer answer, double cumulative, int32_t length) {
  answer.cumulative_logprob = cumulative;
  answer.score = cumulative / std::pow(length, length_penalty_);
  const auto worse =
      std::ranges::find_if(answers_, [&](const BeamAnswer& other) { return other.score < answer.score; });
  answers_.insert(worse, std::move(answer));
  if (answers_.size() > width_) answers_.pop_back();
}

}  // namespace tensorwright
