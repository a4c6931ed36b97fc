// The matmul of the AVX-512 kernels. `Dot` is one of x86_avx512_dot.h.
//
//   for each unit of 4 panels, for each chunk of rows, for each block of K:
//     for each R <= 6 rows of the chunk:  micro kernel, R x 4 accumulators in registers
//   then bias, activation, residual and rounding for the chunk
//
// A weight vector is loaded once per R rows; a block of weights comes from memory once and is found in the L2
// cache by the other rows of the chunk. Partial sums are stored and reloaded between blocks of K, so the
// blocks change no bit. Everything is in an unnamed namespace: this header is compiled under instruction-set
// flags and must not leak.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_H_

#include "plugins/matmul/x86_avx512_dot.h"
#include "plugins/matmul/x86_avx512_finish.h"

namespace {

constexpr int64_t kRows = 6;          // the most rows of a micro kernel: 29 of 32 registers with 4 panels
constexpr int64_t kChunk = 96;        // rows
constexpr int64_t kDeepBlock = 2048;  // groups of K: a block of a unit takes half the L2 cache
constexpr int64_t kFlatBlock = 512;   // shorter for few rows, so that the next block is fetched ahead in time

// One call of a micro kernel.
struct Tile {
  const char* x;         // first row, at the block's first K
  int64_t x_stride;      // bytes
  const char* w;         // first panel, at the block's first K
  int64_t w_stride;      // bytes between panels
  int64_t groups;        // whole 4-byte groups of K
  bool tail;             // there is one more group, of which x has only the first half
  bool first;            // sums start at zero
  float* sum;            // [rows, kUnit, 16] partial sums
  const char* ahead[2];  // lines to fetch meanwhile, one per group of K, ahead_step bytes apart
  int64_t ahead_step[2];
};

template <class Dot, int R, int P>
void micro(const Tile* t) {
  __m512 acc[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      acc[r][p] = t->first ? _mm512_setzero_ps() : _mm512_loadu_ps(t->sum + (r * kUnit + p) * kLanes);
    }
  }
  const int64_t x_stride = t->x_stride, w_stride = t->w_stride;
  Cursor c = {{t->x, t->x + 3 * x_stride}, {t->w, t->w + 3 * w_stride}};
  const char *ahead0 = t->ahead[0], *ahead1 = t->ahead[1];
  const int64_t ahead_step0 = t->ahead_step[0], ahead_step1 = t->ahead_step[1];
  for (int64_t g = t->groups; g > 0; --g) {
    _mm_prefetch(ahead0, _MM_HINT_T1);
    _mm_prefetch(ahead1, _MM_HINT_T1);
    step<Dot, R, P>(acc, c, x_stride, w_stride, 4);
    ahead0 += ahead_step0;
    ahead1 += ahead_step1;
    advance(&c);
  }
  if (t->tail) step<Dot, R, P>(acc, c, x_stride, w_stride, 2);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) _mm512_storeu_ps(t->sum + (r * kUnit + p) * kLanes, acc[r][p]);
  }
}

typedef void (*Micro)(const Tile*);

#define TW_MICROS(P) \
  {micro<Dot, 1, P>, micro<Dot, 2, P>, micro<Dot, 3, P>, micro<Dot, 4, P>, micro<Dot, 5, P>, micro<Dot, 6, P>}
template <class Dot>
Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro table[kUnit][kRows] = {TW_MICROS(1), TW_MICROS(2), TW_MICROS(3), TW_MICROS(4)};
  return table[panels - 1][rows - 1];
}
#undef TW_MICROS

// How a call is cut; every unit of panels is cut alike.
struct Cut {
  int64_t groups, block;       // whole groups of K, and per block
  int64_t chunk;               // rows
  int64_t x_stride, w_stride;  // bytes
  bool tail;
};

Cut cut_of(const tw_matmul_args* a, int dtype, int64_t rows_at_once) {
  Cut c;
  const int64_t bytes = (int64_t)tw_dtype_bytes(dtype);
  c.groups = a->k * bytes / 4;
  c.tail = a->k * bytes % 4 != 0;
  c.x_stride = a->x_stride * bytes;
  c.w_stride = (int64_t)tw_panel_bytes(dtype, (size_t)a->k);
  const int64_t limit = a->rows > rows_at_once && a->rows <= kChunk ? kFlatBlock : kDeepBlock;
  const int64_t blocks = c.groups > limit ? ceil_div(c.groups, limit) : 1;
  c.block = ceil_div(c.groups, blocks);
  // With one block of K, the sums need not wait for the next block, so the chunk is small and they stay in
  // the L1 cache.
  c.chunk = blocks == 1 && a->rows > kChunk ? rows_at_once : kChunk;
  return c;
}

// The weights of the next block, a panel at a time.
struct Ahead {
  const char* w;
  int64_t panels, stride;
};

Ahead ahead_of(const tw_matmul_args* a, const Cut& c, int64_t panel, int64_t panels, int64_t begin) {
  const char* w = (const char*)a->w + panel * c.w_stride;
  if (begin + c.block < c.groups) return {w + (begin + c.block) * 64, panels, c.w_stride};
  return {w + panels * c.w_stride, at_most(kUnit, a->panel_end - panel - panels), c.w_stride};
}

void take(Ahead* from, Tile* tile, int slot) {
  if (from->panels == 0) return;
  tile->ahead[slot] = from->w;
  tile->ahead_step[slot] = 64;
  from->w += from->stride;
  --from->panels;
}

// Sums one block of K (from group `begin`) for `rows` rows from `row` and one unit of panels.
template <class Dot>
void sum_block(const tw_matmul_args* a, const Cut& c, int64_t row, int64_t rows, int64_t panel,
               int64_t panels, int64_t begin, float* sum) {
  const int64_t passes = ceil_div(rows, Dot::kRowsAtOnce);
  const bool last = begin + c.block >= c.groups;
  const char* w = (const char*)a->w + panel * c.w_stride + begin * 64;
  Ahead next = ahead_of(a, c, panel, panels, begin);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = rows * pass / passes, end = rows * (pass + 1) / passes;
    Tile t = {(const char*)a->x + (row + first) * c.x_stride + begin * 4,
              c.x_stride,
              w,
              c.w_stride,
              last ? c.groups - begin : c.block,
              last && c.tail,
              begin == 0,
              sum + first * kUnit * kLanes,
              {w, w},
              {0, 0}};
    // A single pass has no time to fetch weights ahead. With several passes, the last ones fetch them.
    if (passes > 1 && pass >= passes - kUnit) {
      take(&next, &t, 0);
      if (passes < kUnit) take(&next, &t, 1);
    }
    if (end == rows && row + rows < a->rows &&
        t.groups > 0) {  // fetches the next rows, spread over this pass
      t.ahead[1] = t.x + (end - first) * c.x_stride;
      t.ahead_step[1] = (end - first) * c.x_stride / t.groups;
    }
    micro_for<Dot>(end - first, panels)(&t);
  }
}

template <class Dot>
void matmul(const tw_matmul_args* a, int dtype) {
  const Cut c = cut_of(a, dtype, Dot::kRowsAtOnce);
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows; row += c.chunk) {
      const int64_t rows = at_most(c.chunk, a->rows - row);
      int64_t begin = 0;
      do {
        sum_block<Dot>(a, c, row, rows, panel, panels, begin, sum);
        begin += c.block;
      } while (begin < c.groups);
      finish_for(a, panels)(a, row, rows, panel, sum);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_X86_AVX512_H_
