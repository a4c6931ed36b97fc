#include "runtime/core/scheduler/step_pace.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace tensorwright {

namespace {

// The margin never falls below this: a goal that cannot be kept must not stop the prompts.
constexpr double kLeastMargin = 0.3;
// How far one step over the goal lowers the margin.
constexpr double kMarginStep = 0.02;
// The weights of a new time in the means. What is slower than thought counts more than what is faster.
constexpr double kNewTime = 0.2, kSlower = 0.5, kFaster = 0.2;
// A completion more may run while a step takes no more than this part of the goal.
constexpr double kRoom = 0.95;

size_t bin_of(int32_t decodes) { return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(decodes))); }

}  // namespace

// Returns the mean time of steps with about so many decodes: of the nearest number that is not greater, else
// of the nearest greater one; 0 if there was none.
double StepPace::decode_seconds(int32_t decodes) const {
  const size_t bin = bin_of(decodes);
  for (size_t i = bin + 1; i-- > 0;) {
    if (decode_seconds_[i] > 0) return decode_seconds_[i];
  }
  for (size_t i = bin + 1; i < decode_seconds_.size(); ++i) {
    if (decode_seconds_[i] > 0) return decode_seconds_[i];
  }
  return 0;
}

void StepPace::observe(const PacedStep& step) {
  if (!on() || step.decodes < 1 || !(step.seconds > 0)) return;
  const bool over = step.seconds > goal_;
  over_ += over;
  if (!over) {
    margin_ = std::min(1.0, margin_ + kMarginStep * kRate / (1 - kRate));
  } else if (decode_seconds(step.decodes) <= goal_) {  // else fewer must run, whatever the share of prompts
    margin_ = std::max(kLeastMargin, margin_ - kMarginStep);
  }
  if (step.prefill == 0) {
    note_decodes(step);
  } else {
    note_prefill(step);
  }
  set_places(step);
}

void StepPace::note_decodes(const PacedStep& step) {
  double& mean = decode_seconds_[bin_of(step.decodes)];
  mean = mean > 0 ? mean + kNewTime * (step.seconds - mean) : step.seconds;
}

void StepPace::note_prefill(const PacedStep& step) {
  const double decoding = std::min(decode_seconds(step.decodes), step.seconds);
  const double slope = (step.seconds - decoding) / step.prefill;
  slope_ += (slope > slope_ ? kSlower : kFaster) * (slope - slope_);
  const double room = goal_ * margin_ - decoding;
  // Of a step that was not full of prompts nothing is learned about larger shares.
  const int32_t most = std::min(max_tokens_, 2 * step.prefill >= share_ ? 2 * share_ : share_);
  const double solved = slope_ > 0 ? room / slope_ : max_tokens_;
  share_ = static_cast<int32_t>(std::clamp<double>(solved, std::min(kLeastShare, most), most));
}

void StepPace::set_places(const PacedStep& step) {
  const double limit = goal_ * margin_;
  const bool least = step.prefill > 0 && step.prefill <= kLeastShare;
  const double seconds = step.prefill == 0 ? decode_seconds(step.decodes) : step.seconds;
  if ((step.prefill == 0 || least) && seconds > limit) {
    places_ = std::max(1, step.decodes - 1);
  } else if (places_ > 0 && step.decodes >= places_ && seconds <= kRoom * limit) {
    places_ = step.decodes + 1;
  }
}

}  // namespace tensorwright
