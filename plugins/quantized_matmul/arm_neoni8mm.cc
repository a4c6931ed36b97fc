// quantized_matmul of dense weights for NEON with SMMLA, with the same bits as scalar.cc: every sum is exact.
//
// SMMLA multiplies two rows of x by two rows of weights, 8 elements of K at once, into a tile of 2 by 2 sums.
// Two steps of 4 elements of K are interleaved in registers, so the panels stay as they are; the tiles are
// turned into rows when a group ends. One row is multiplied by SDOT.
#include "plugins/common/arm_dot.h"
#include "plugins/common/arm_neon.h"
#include "plugins/quantized_matmul/arm_registers.h"

namespace {

// Returns 8 elements of row r and of the next row, or of row r again if there is no next one.
template <int R>
TW_INLINE int8x16_t two_rows(const int8_t* x, int64_t x_stride, int r) {
  const int8_t* first = x + r * x_stride;
  return vcombine_s8(vld1_s8(first), vld1_s8(r + 1 < R ? first + x_stride : first));
}

// The same of the last 4 elements of K, and zeros.
template <int R>
TW_INLINE int8x16_t two_short_rows(const int8_t* x, int64_t x_stride, int r) {
  const int32x4_t zeros = vdupq_n_s32(0);
  int32_t first, second;
  memcpy(&first, x + r * x_stride, sizeof first);
  memcpy(&second, x + (r + 1 < R ? r + 1 : r) * x_stride, sizeof second);
  return vreinterpretq_s8_s32(vsetq_lane_s32(second, vsetq_lane_s32(first, zeros, 0), 2));
}

// Adds the products of 8 elements of K. x: [(R + 1) / 2] of two rows; w(i, step): 4 rows of weights, 4
// elements.
template <int R, int P, class W>
TW_INLINE void add_tiles(int32x4_t (&acc)[(R + 1) / 2][2 * kParts * P], const int8x16_t (&x)[(R + 1) / 2],
                         W w) {
  TW_UNROLL
  for (int i = 0; i < kParts * P; ++i) {
    const int32x4_t near = vreinterpretq_s32_s8(w(i, 0)), far = vreinterpretq_s32_s8(w(i, 1));
    const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(near, far));
    const int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(near, far));
    TW_UNROLL
    for (int r = 0; r < (R + 1) / 2; ++r) {
      acc[r][2 * i] = vmmlaq_s32(acc[r][2 * i], x[r], low);
      acc[r][2 * i + 1] = vmmlaq_s32(acc[r][2 * i + 1], x[r], high);
    }
  }
}

// Adds the products of the steps of a block from kStep on, for weights of fewer bits than 8.
template <class Of, int kStep, int R, int P>
TW_INLINE void add_pairs(int32x4_t (&acc)[(R + 1) / 2][2 * kParts * P], const Group* g, const int8_t* x,
                         const char* w, const typename Of::Levels (&levels)[P]) {
  int8x16_t row[(R + 1) / 2];
  TW_UNROLL
  for (int r = 0; r < R; r += 2) row[r / 2] = two_rows<R>(x + kStep * 4, g->x_stride, r);
  add_tiles<R, P>(acc, row, [&](int i, int step) TW_ALWAYS {
    const char* block = w + i / kParts * g->w_stride;
    return step == 0 ? Of::template at<kStep>(block, i % kParts, levels[i / kParts])
                     : Of::template at<kStep + 1>(block, i % kParts, levels[i / kParts]);
  });
  if constexpr (kStep + 2 < Of::kSteps) add_pairs<Of, kStep + 2, R, P>(acc, g, x, w, levels);
}

// Adds the products of a group of bytes. Rows whose K has an odd number of steps end with half a tile.
template <int R, int P>
TW_INLINE void add_bytes(int32x4_t (&acc)[(R + 1) / 2][2 * kParts * P], const Group* g) {
  const int8_t* x = g->x;
  const char* w = g->w;
  int8x16_t row[(R + 1) / 2];
  for (int64_t n = g->lines / 2; n > 0; --n, x += 8, w += 128) {
    TW_UNROLL
    for (int r = 0; r < R; r += 2) row[r / 2] = two_rows<R>(x, g->x_stride, r);
    add_tiles<R, P>(acc, row, [&](int i, int step) TW_ALWAYS {
      return vreinterpretq_s8_u8(bytes_at(w + i / kParts * g->w_stride + i % kParts * 16 + step * 64));
    });
  }
  if (g->lines % 2 == 0) return;
  TW_UNROLL
  for (int r = 0; r < R; r += 2) row[r / 2] = two_short_rows<R>(x, g->x_stride, r);
  add_tiles<R, P>(acc, row, [&](int i, int) TW_ALWAYS {
    return vreinterpretq_s8_u8(bytes_at(w + i / kParts * g->w_stride + i % kParts * 16));
  });
}

// Returns the sums of one of two rows: `low` and `high` are tiles of neighbouring pairs of rows of weights.
TW_INLINE int32x4_t row_of_tiles(int32x4_t low, int32x4_t high, int r) {
  const int64x2_t a = vreinterpretq_s64_s32(low), b = vreinterpretq_s64_s32(high);
  return vreinterpretq_s32_s64(r == 0 ? vzip1q_s64(a, b) : vzip2q_s64(a, b));
}

// Computes a group for R rows and P panels.
template <class Of, int kScaling, int R, int P>
void tile_micro(const Group* g) {
  int32x4_t acc[(R + 1) / 2][2 * kParts * P];
  typename Of::Levels levels[P];
  TW_UNROLL
  for (int p = 0; p < P; ++p)
    levels[p] = Of::levels_of(g->scales + p * g->w_stride, g->zeros + p * g->w_stride);
  TW_UNROLL
  for (int r = 0; r < (R + 1) / 2; ++r) {
    TW_UNROLL
    for (int i = 0; i < 2 * kParts * P; ++i) acc[r][i] = vdupq_n_s32(0);
  }
  if constexpr (Of::kCodec.bits == 8) {
    add_bytes<R, P>(acc, g);
  } else {
    const int8_t* x = g->x;
    const char* w = g->w;
    for (int64_t n = g->lines; n > 0; n -= Of::kBytes / 64, x += Of::kSteps * 4, w += Of::kBytes)
      add_pairs<Of, 0, R, P>(acc, g, x, w, levels);
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) {
      const int32x4_t sums = row_of_tiles(acc[r / 2][2 * i], acc[r / 2][2 * i + 1], r % 2);
      put_sums<Of, kScaling>(g, r, i, vaddq_s32(sums, start_of<Of>(g, r, i)));
    }
  }
}

struct Tiles {
  template <class Of, int kScaling, int R, int P>
  static constexpr Micro of() {
    if constexpr (R == 1) {
      return dot_micro<Of, DotProducts, kScaling, R, P>;
    } else {
      return tile_micro<Of, kScaling, R, P>;
    }
  }
};

}  // namespace

#define TW_NEONI8MM(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_neoni8mm(const tw_quantized_matmul_args* a) { \
    run<Tiles, DotProducts, dtype>(a);                                                       \
  }
TW_FOR_EACH_DENSE(TW_NEONI8MM)
#undef TW_NEONI8MM
