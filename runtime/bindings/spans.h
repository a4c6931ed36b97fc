// Converts the spans of a timeline to an array.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_SPANS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_SPANS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "runtime/core/base/timeline.h"

namespace tensorwright {

using Spans = nanobind::ndarray<nanobind::numpy, int64_t, nanobind::ndim<2>>;
constexpr size_t kSpanFields = 9;

// Returns the spans, each with kind, begin, end, id, track, a, b, c and d, and how many there was no room
// for.
inline std::tuple<Spans, int64_t> spans_of(const Timeline& timeline) {
  const std::vector<Span> spans = timeline.spans();
  auto values = std::make_unique<int64_t[]>(spans.size() * kSpanFields);
  int64_t* at = values.get();
  for (const Span& span : spans) {
    for (const int64_t value :
         {int64_t{static_cast<int32_t>(span.kind)}, span.begin, span.end, span.id, int64_t{span.track},
          int64_t{span.a}, int64_t{span.b}, int64_t{span.c}, int64_t{span.d}}) {
      *at++ = value;
    }
  }
  int64_t* data = values.release();
  const nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
  return {Spans(data, {spans.size(), kSpanFields}, owner), timeline.dropped()};
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_SPANS_H_
