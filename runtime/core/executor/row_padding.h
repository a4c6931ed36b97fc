// Makes AddressSanitizer report accesses to the padding between a row's columns and the next row, while a
// WatchedPadding lives. Buffers that share memory with a buffer of another shape are not watched.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ROW_PADDING_H_
#define TENSORWRIGHT_RUNTIME_CORE_ROW_PADDING_H_

#include <algorithm>

#include "runtime/core/base/poison.h"
#include "runtime/core/ops/op.h"

namespace tensorwright {

class WatchedPadding {
 public:
  WatchedPadding(const Plan& plan, const StepView& view) : plan_(plan), view_(view) { each(poison); }
  ~WatchedPadding() { each(unpoison); }
  WatchedPadding(const WatchedPadding&) = delete;
  WatchedPadding& operator=(const WatchedPadding&) = delete;

 private:
  static bool apart(const BufferRecord& a, const BufferRecord& b) {
    return a.kind != b.kind || a.offset + a.stride_bytes <= b.offset || b.offset + b.stride_bytes <= a.offset;
  }
  static bool alike(const BufferRecord& a, const BufferRecord& b) {
    return a.offset == b.offset && a.stride_bytes == b.stride_bytes && a.dtype == b.dtype && a.cols == b.cols;
  }

  void each(void (*mark)(const void*, size_t)) const {
    if (!kPoisons) return;
    for (const BufferRecord& record : plan_.buffers) {
      const auto clear = [&](const BufferRecord& other) {
        return apart(record, other) || alike(record, other);
      };
      if (!std::ranges::all_of(plan_.buffers, clear)) continue;
      const BufferRef buffer(record);
      const auto used = static_cast<size_t>(buffer.row_bytes());
      for (int32_t row = 0; row < buffer.rows(view_); ++row) {
        mark(buffer.at(view_, row) + used, buffer.stride_bytes - used);
      }
    }
  }

  const Plan& plan_;
  const StepView& view_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ROW_PADDING_H_
