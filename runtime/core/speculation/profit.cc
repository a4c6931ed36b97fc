#include "runtime/core/speculation/profit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

namespace tensorwright {

void Profit::Rate::add(int32_t made, double seconds) {
  constexpr double kMemory = 31.0 / 32;
  if (steps_ > 0) seconds = std::min(seconds, 4 * seconds_ / steps_);
  const auto tokens = static_cast<double>(made);
  const auto fold = [](double& sum, double value) { sum = kMemory * sum + value; };
  ++counted_;
  fold(steps_, 1), fold(seconds_, seconds), fold(made_, tokens);
  fold(seconds_squared_, seconds * seconds), fold(product_, seconds * tokens),
      fold(made_squared_, tokens * tokens);
}

double Profit::Rate::variance() const {
  constexpr double kScatter = 0.05;
  const double rate = per_token();
  const double squares = seconds_squared_ - 2 * rate * product_ + rate * rate * made_squared_;
  const double least = kScatter * kScatter * rate * rate / steps_;
  return std::max(squares / (made_ * made_), least);
}

// Whether a token takes longer with proposals, by more than the scatter of the times explains.
bool Profit::OfSize::loses() const {
  if (with.counted() < kTries || plain.counted() == 0) return false;
  const double more = with.per_token() - plain.per_token();
  if (with.per_token() <= kTolerated * plain.per_token()) return false;
  return more > kDeviations * std::sqrt(with.variance() + plain.variance());
}

size_t Profit::index(int32_t decodes) {
  const auto size = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(decodes, 1) - 1)));
  return std::min(size, std::tuple_size_v<decltype(sizes_)> - 1);
}

bool Profit::allows(int32_t decodes) {
  OfSize& size = sizes_[index(decodes)];
  if (size.left > 0) {
    if (--size.left == 0) size.with = {};
    return false;
  }
  if (size.asked < kPlainAtFirst) {
    ++size.asked;
    return false;
  }
  if (++size.since_plain < kPlainEvery) return true;
  size.since_plain = 0;
  return false;
}

void Profit::observe(int32_t decodes, bool proposed, int32_t made, double seconds) {
  if (made < 1 || !(seconds > 0)) return;
  OfSize& size = sizes_[index(decodes)];
  (proposed ? size.with : size.plain).add(made, seconds);
  if (proposed && size.left == 0) {
    if (size.loses()) {
      size.left = size.pause;
      size.pause = std::min(2 * size.pause, kLongestPause);
    } else if (size.with.counted() >= kTries) {
      size.pause = kFirstPause;
    }
  } else if (size.left > 0 && size.left % kRevision == 0 && size.with.counted() > 0 &&
             size.with.per_token() < size.plain.per_token()) {
    // The steps without are no faster: the whole machine was slower than before.
    size.left = 0;
    size.pause = kFirstPause;
  }
}

}  // namespace tensorwright
