#include "plugins/quantized_matmul/prune.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plugins/common/bf16.h"
#include "plugins/quantized_matmul/decode.h"

namespace tensorwright {
namespace {

constexpr int kQuad = 4;

// Returns the dense dtype whose weights the kept ones are.
int dense_of(int dtype) { return tw_codec(dtype).bits == 8 ? TW_I8 : TW_I4; }

// Sets all but the two largest magnitudes of `count` neighbours to 0. Returns the sum of squares of the
// others.
double prune_quad(float* w, int64_t count) {
  bool kept[kQuad];
  for (int64_t i = 0; i < count; ++i) {
    int larger = 0;
    for (int64_t j = 0; j < count; ++j) {
      const float a = std::fabs(w[j]), b = std::fabs(w[i]);
      larger += a > b || (a == b && j < i);
    }
    kept[i] = larger < 2;
  }
  double lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (kept[i]) continue;
    lost += static_cast<double>(w[i]) * w[i];
    w[i] = 0.0f;
  }
  return lost;
}

// Writes kept element `at` of a row of a block, and its place.
void put(int dtype, char* block, int64_t at, int64_t lane, int place, int32_t value) {
  block[lane * 4 + at % 4] |= static_cast<char>(place << at / 4 * 2);
  char* kept = block + TW_SPARSE_PLACES;
  if (tw_codec(dtype).bits == 8) {
    kept[at / 4 * 64 + lane * 4 + at % 4] = static_cast<char>(value);
  } else {
    kept[at / 8 * 64 + lane * 4 + at % 4] |= static_cast<char>((value + 8) << (at % 8 < 4 ? 0 : 4));
  }
}

// Packs four columns of a row. w: their weights.
void pack_quad(int dtype, const int32_t* w, int64_t quad, int64_t lane, char* block) {
  int places[2], found = 0;
  for (const bool zeros : {false, true}) {
    for (int i = 0; i < kQuad && found < 2; ++i) {
      if ((w[i] == 0) == zeros) places[found++] = i;
    }
  }
  if (places[0] > places[1]) std::swap(places[0], places[1]);
  for (int i = 0; i < 2; ++i) put(dtype, block, quad * 2 + i, lane, places[i], w[places[i]]);
}

}  // namespace

Pruned prune_rows(const PackSource& source, float* to) {
  Pruned result;
  float none = 0;  // stays 0 unless a weight is infinite or NaN
  for (int64_t row = 0; row < source.rows; ++row, to += source.k) {
    for (int64_t k = 0; k < source.k; ++k) {
      const int64_t at = row * source.stride + k;
      to[k] = source.dtype == TW_BF16 ? tw_bf16_to_f32(static_cast<const uint16_t*>(source.data)[at])
                                      : static_cast<const float*>(source.data)[at];
      none += to[k] * 0.0f;
    }
    for (int64_t k = 0; k < source.k; k += kQuad)
      result.error += prune_quad(to + k, std::min<int64_t>(kQuad, source.k - k));
  }
  result.finite = none == 0.0f;
  return result;
}

void pack_sparse_panel(int dtype, int64_t k, int64_t group, const void* dense, void* panel) {
  const int from = dense_of(dtype);
  std::memset(panel, 0, static_cast<size_t>(tw_quantized_panel_bytes(dtype, k, group)));
  for (int64_t i = 0; i < tw_quantized_groups(k, group); ++i) {
    const char* values = static_cast<const char*>(dense) + tw_quantized_group_offset(from, k, group, i);
    char* to = static_cast<char*>(panel) + tw_quantized_group_offset(dtype, k, group, i);
    std::memcpy(static_cast<char*>(panel) + tw_quantized_scale_offset(dtype, k, group, i),
                static_cast<const char*>(dense) + tw_quantized_scale_offset(from, k, group, i),
                static_cast<size_t>(TW_LANES * tw_codec(dtype).scale_bytes));
    for (int64_t e = 0; e < group; e += kQuad) {
      char* block = to + e / TW_SPARSE_BLOCK * tw_sparse_block_bytes(dtype);
      for (int64_t lane = 0; lane < TW_LANES; ++lane) {
        int32_t w[kQuad];
        for (int j = 0; j < kQuad; ++j) w[j] = tw_dense_weight(from, values, nullptr, e + j, lane);
        pack_quad(dtype, w, e % TW_SPARSE_BLOCK / kQuad, lane, block);
      }
    }
  }
}

}  // namespace tensorwright
