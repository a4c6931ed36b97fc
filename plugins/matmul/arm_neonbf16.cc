// matmul of bfloat16 for NEON with BFDOT, which multiplies pairs of neighbours along K. Its rounding is its
// own (Arm Architecture Reference Manual, BFDOT), so the bits are not those of scalar.cc; but one lane is one
// output and K ascends, so a row has the same bits alone and in a crowd. BFMMLA, which sums four products in
// another order, is not used: one row would have other bits than many.
//
//   for each unit of 4 panels, for each block of K, for each R <= 6 rows, for P panels: R x P panels in
//   registers then bias, activation, residual and rounding
//
// Partial sums are stored and reloaded between blocks of K, so the blocks change no bit.
#include "plugins/common/arm_neon.h"
#include "plugins/matmul/vector_finish.h"

namespace {

constexpr int64_t kRows = 6;      // the most rows of a micro kernel
constexpr int64_t kChunk = 96;    // rows
constexpr int64_t kBlock = 1024;  // elements of K with many rows: a unit's weights stay in the L2 cache

// One call of a micro kernel.
struct Tile {
  const char* x;     // first row, at the block's first K
  int64_t x_stride;  // bytes
  const char* w;     // first panel, at the block's first K
  int64_t w_stride;  // bytes between panels
  int64_t depth;     // elements of K
  bool first;        // sums start at zero
  float* sum;        // [R, kUnit, 16] partial sums
};

// Adds a 4-byte group of K, of which x has `bytes`.
template <int R, int P>
TW_INLINE void step(float32x4_t (&acc)[R][4 * P], const Tile* t, const char* x, const char* w, size_t bytes) {
  bfloat16x8_t pair[R];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    uint32_t bits = 0;
    memcpy(&bits, x + r * t->x_stride, bytes);
    pair[r] = vreinterpretq_bf16_u32(vdupq_n_u32(bits));
  }
  TW_UNROLL
  for (int i = 0; i < 4 * P; ++i) {
    const uint8x16_t line = vld1q_u8((const uint8_t*)w + i / 4 * t->w_stride + i % 4 * 16);
    TW_UNROLL
    for (int r = 0; r < R; ++r) acc[r][i] = vbfdotq_f32(acc[r][i], vreinterpretq_bf16_u8(line), pair[r]);
  }
}

template <int R, int P>
void micro(const Tile* t) {
  float32x4_t acc[R][4 * P];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < 4 * P; ++i)
      acc[r][i] = t->first ? vdupq_n_f32(0.0f) : vld1q_f32(t->sum + r * kUnit * kLanes + i * 4);
  }
  const char *x = t->x, *w = t->w;
  for (int64_t n = t->depth / 2; n > 0; --n, x += 4, w += 64) step<R, P>(acc, t, x, w, 4);
  if (t->depth % 2 != 0) step<R, P>(acc, t, x, w, 2);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < 4 * P; ++i) vst1q_f32(t->sum + r * kUnit * kLanes + i * 4, acc[r][i]);
  }
}

typedef void (*Micro)(const Tile*);

Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro one[kRows] = {micro<1, 1>, micro<2, 1>, micro<3, 1>,
                                   micro<4, 1>, micro<5, 1>, micro<6, 1>};
  static const Micro two[2] = {micro<1, 2>, micro<2, 2>};
  if (panels == 1) return one[rows - 1];
  if (panels == 2) return two[rows - 1];
  return panels == 3 ? micro<1, 3> : micro<1, 4>;
}

// Adds K from `begin` on, `depth` elements of it, for a chunk of rows and a unit of panels. sum: [rows,
// kUnit, 16].
void sum_block(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
               int64_t begin, int64_t depth, float* sum) {
  const auto w_stride = (int64_t)tw_panel_bytes(TW_BF16, (size_t)a->k);
  const int64_t passes = ceil_div(rows, kRows);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = rows * pass / passes, count = rows * (pass + 1) / passes - first;
    const int64_t at_once = count == 1 ? 4 : count == 2 ? 2 : 1;
    for (int64_t p = 0; p < panels; p += at_once) {
      const Tile t = {(const char*)a->x + ((row + first) * a->x_stride + begin) * 2,
                      a->x_stride * 2,
                      (const char*)a->w + (panel + p) * w_stride + begin * 2 * kLanes,
                      w_stride,
                      depth,
                      begin == 0,
                      sum + (first * kUnit + p) * kLanes};
      micro_for(count, at_most(at_once, panels - p))(&t);
    }
  }
}

}  // namespace

extern "C" void tw_matmul_bf16_neonbf16(const tw_matmul_args* args) {
  const tw_matmul_args a = *args;  // a copy: y cannot alias it
  const FinishRow finish = finish_row_for<Neon>(a.epilogue);
  const int64_t block = a.rows > kRows ? kBlock : (int64_t)a.k;
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a.panel_begin; panel < a.panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a.panel_end - panel);
    for (int64_t row = 0; row < a.rows; row += kChunk) {
      const int64_t rows = at_most(kChunk, a.rows - row);
      int64_t begin = 0;
      do {
        sum_block(&a, row, rows, panel, panels, begin, at_most(block, a.k - begin), sum);
        begin += block;
      } while (begin < a.k);
      for (int64_t r = 0; r < rows; ++r) finish(a, row + r, panel, panels, sum + r * kUnit * kLanes);
    }
  }
}
