#include "runtime/core/speculation/profit.h"

#include <algorithm>
#include <bit>

namespace tensorwright {

void Profit::Mean::add(double time) {
  constexpr double kNew = 0.2;
  if (counted++ == 0) {
    value = time;
  } else {
    value += kNew * (std::min(time, 4 * value) - value);
  }
}

Profit::OfSize& Profit::of(int32_t decodes) {
  const auto size = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(decodes, 1) - 1)));
  return sizes_[std::min(size, sizes_.size() - 1)];
}

bool Profit::allows(int32_t decodes) {
  OfSize& size = of(decodes);
  if (size.left > 0) {
    --size.left;
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
  OfSize& size = of(decodes);
  (proposed ? size.with : size.plain).add(seconds / made);
  if (!proposed || size.with.counted < kTries || size.plain.counted == 0) return;
  if (size.with.value > kTolerated * size.plain.value) {
    size.left = size.pause;
    size.pause = std::min(2 * size.pause, kLongestPause);
    size.with = {};
  } else {
    size.pause = kFirstPause;
  }
}

}  // namespace tensorwright
