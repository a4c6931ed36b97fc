// It reads 16 rows side by side and writes whole 64-byte groups.
#include "runtime/bindings/testing/panels.h"

#include <algorithm>
#include <cstring>

#include "plugins/common/bf16.h"

namespace tensorwright {
namespace {

template <typename From, typename To>
To convert(From value) {
  if constexpr (sizeof(From) == sizeof(To)) {
    return value;
  } else if constexpr (sizeof(From) == 2) {
    return tw_bf16_to_f32(value);
  } else {
    return tw_f32_to_bf16(value);
  }
}

// Packs one panel from `rows` <= 16 rows; the rest of the panel is zero. It copies squares of 16 rows x 16
// groups through a small buffer, because rows that lie a power of two apart would evict each other from the
// cache if they were read side by side.
template <typename From, typename To>
void pack_panel(const From* data, int64_t stride, int64_t rows, int64_t k, uint32_t* panel) {
  constexpr int64_t kGroup = 4 / sizeof(To), kSquare = TW_LANES * kGroup;
  for (int64_t at = 0; at < k; at += kSquare) {
    const int64_t columns = std::min(k - at, kSquare);
    const int64_t groups = (columns + kGroup - 1) / kGroup;
    To square[TW_LANES][kSquare] = {};
    for (int64_t row = 0; row < rows; ++row) {
      const From* from = data + row * stride + at;
      for (int64_t i = 0; i < columns; ++i) square[row][i] = convert<From, To>(from[i]);
    }
    uint32_t units[TW_LANES][TW_LANES];  // [row][group]: a group moves as a whole
    std::memcpy(units, square, sizeof units);
    uint32_t* out = panel + at / kGroup * TW_LANES;
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t row = 0; row < TW_LANES; ++row) out[group * TW_LANES + row] = units[row][group];
    }
  }
}

template <typename From, typename To>
void pack_all(const PackSource& source, char* out, int64_t out_stride) {
  const From* data = static_cast<const From*>(source.data);
  for (int64_t row = 0; row < source.rows; row += TW_LANES, out += out_stride) {
    const int64_t rows = std::min<int64_t>(source.rows - row, TW_LANES);
    pack_panel<From, To>(data + row * source.stride, source.stride, rows, source.k,
                         reinterpret_cast<uint32_t*>(out));
  }
}

void pack(int dtype, const PackSource& source, void* panels, int64_t stride) {
  char* out = static_cast<char*>(panels);
  const bool from_bf16 = source.dtype == TW_BF16;
  if (dtype == TW_BF16) {
    from_bf16 ? pack_all<uint16_t, uint16_t>(source, out, stride)
              : pack_all<float, uint16_t>(source, out, stride);
  } else {
    from_bf16 ? pack_all<uint16_t, float>(source, out, stride) : pack_all<float, float>(source, out, stride);
  }
}

template <typename T>
void unpack(const T* panels, int64_t rows, int64_t k, T* out) {
  constexpr int64_t kGroup = 4 / sizeof(T);
  const int64_t panel = (k + kGroup - 1) / kGroup * kGroup * TW_LANES;
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = panels + row / TW_LANES * panel + row % TW_LANES * kGroup;
    for (int64_t at = 0; at < k; ++at)
      out[row * k + at] = from[at / kGroup * (TW_LANES * kGroup) + at % kGroup];
  }
}

}  // namespace

void pack_panels(int dtype, const PackSource& source, void* panels) {
  pack(dtype, source, panels, static_cast<int64_t>(tw_panel_bytes(dtype, static_cast<size_t>(source.k))));
}

void pack_gated_panels(int dtype, const PackSource& gate, const PackSource& up, void* panels) {
  const auto bytes = static_cast<int64_t>(tw_panel_bytes(dtype, static_cast<size_t>(gate.k)));
  pack(dtype, gate, panels, 2 * bytes);
  pack(dtype, up, static_cast<char*>(panels) + bytes, 2 * bytes);
}

void unpack_panels(int dtype, const void* panels, int64_t rows, int64_t k, void* out) {
  if (dtype == TW_BF16) {
    unpack(static_cast<const uint16_t*>(panels), rows, k, static_cast<uint16_t*>(out));
  } else {
    unpack(static_cast<const float*>(panels), rows, k, static_cast<float*>(out));
  }
}

}  // namespace tensorwright
