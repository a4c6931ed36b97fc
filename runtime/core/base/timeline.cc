#include "runtime/core/base/timeline.h"

#include <new>

namespace tensorwright {

void Timeline::add(const Span& span) noexcept {
  const std::lock_guard lock(mutex_);
  const bool detail = span.kind == SpanKind::kOp || span.kind == SpanKind::kTasks;
  if (spans_.size() >= kMaxSpans) full_.store(true, std::memory_order_relaxed);
  if (spans_.size() >= kMaxSpans + (detail ? 0 : kMoreOfSteps)) {
    ++dropped_;
    return;
  }
  try {
    spans_.push_back(span);
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

std::vector<Span> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

int64_t Timeline::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace tensorwright
