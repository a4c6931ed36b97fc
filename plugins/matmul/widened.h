// Cuts a matmul into calls of a micro kernel in registers of 16 pairs of lanes or more: fp32, and bf16 by
// exact widening, of both operands or of the weights alone. Same bits as scalar.cc.
//
//   for each unit of 4 panels, for each chunk of rows, for each block of K:
//     for each R <= 6 rows of the chunk: widen x of these rows, then micro kernels, R x P panels in registers
//   then bias, activation, residual and rounding for the chunk
//
// A panel takes two vectors of 8 lanes, so 6 rows and 1 panel, or 1 row and 4 panels, fill 16 of them.
// Partial sums are stored and reloaded between blocks of K, so the blocks change no bit.
//
// The file of an instruction set defines `Set`: Isa, one of plugins/common; panels_at_once(dtype, rows), how
// many panels go through a micro kernel together; micro<kDtype, R, P>(tile); and load(dtype, x, at, count),
// which loads 8 elements as floats.
#ifndef TENSORWRIGHT_PLUGINS_MATMUL_WIDENED_H_
#define TENSORWRIGHT_PLUGINS_MATMUL_WIDENED_H_

#include "plugins/matmul/vector_finish.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kRows = 6;     // the most rows of a micro kernel
constexpr int64_t kChunk = 96;   // rows
constexpr int64_t kBlock = 512;  // elements of K: x of 6 rows stays in the L1 cache, a unit in the L2
constexpr int64_t kStride = kBlock + 16;  // floats between rows of x

// One call of a micro kernel.
struct Tile {
  const float* x;          // [R, kStride], the block's K
  const char* w;           // first panel, at the block's first K
  int64_t w_stride;        // bytes between panels
  int64_t groups;          // 4-byte groups of K
  bool first;              // sums start at zero
  float* sum;              // [R, kUnit, 16] partial sums
  int64_t ahead;           // bytes from w to the weights that are fetched meanwhile
  const char* x_ahead[2];  // activations that are fetched meanwhile, of two rows
};

typedef void (*Micro)(const Tile*);

template <class Set, int kDtype>
Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro one[kRows] = {Set::template micro<kDtype, 1, 1>, Set::template micro<kDtype, 2, 1>,
                                   Set::template micro<kDtype, 3, 1>, Set::template micro<kDtype, 4, 1>,
                                   Set::template micro<kDtype, 5, 1>, Set::template micro<kDtype, 6, 1>};
  static const Micro two[3] = {
      Set::template micro<kDtype, 1, 2>, Set::template micro<kDtype, 2, 2>,
      Set::panels_at_once(kDtype, 3) == 2 ? Set::template micro<kDtype, 3, 2> : nullptr};
  if (panels == 1) return one[rows - 1];
  if (panels == 2) return two[rows - 1];
  return panels == 3 ? Set::template micro<kDtype, 1, 3> : Set::template micro<kDtype, 1, 4>;
}

// Converts `count` elements of one row of x to floats. The last group is filled with -0: multiplied with the
// zero of the weights, it leaves every sum as it is, even -0.
template <class Set, int kX>
void widen(const void* x, int64_t count, float* to) {
  using Isa = typename Set::Isa;
  for (int64_t k = 0; k < count; k += Isa::kLanes)
    Isa::store(to, TW_F32, k, Isa::kLanes, Set::load(kX, x, k, count - k));
  if (count % 2 != 0) to[count] = -0.0f;
}

// A call, and one unit of its panels.
struct Work {
  const tw_matmul_args* a;
  int64_t panel, panels, w_stride;
};

// A step through a chunk: `rows` <= kRows rows from `row` on, `depth` elements of K from `begin` on.
struct Pass {
  int64_t row, rows, begin, depth;
  const char* next;  // x of the pass that follows in this chunk, or NULL
  bool last_rows;    // whether these are the last rows of the chunk
};

// kX: the dtype of x. kDtype: that of the weights, bf16 where x is.
//
// Sets what a micro kernel for the panels from `p` on fetches while it computes.
template <int kX, int kDtype>
void look_ahead(const Work& work, const Pass& pass, int64_t p, int64_t panels, Tile* t) {
  const tw_matmul_args* a = work.a;
  const int64_t bytes = (int64_t)tw_dtype_bytes(kDtype), x_bytes = (int64_t)tw_dtype_bytes(kX);
  // The last rows of a block fetch the next block, either of these panels or of those of the next unit.
  if (pass.last_rows && pass.begin + pass.depth < a->k) {
    t->ahead = pass.depth * bytes * kLanes;
  } else if (pass.last_rows && work.panel + p + kUnit + panels <= a->panel_end) {
    t->ahead = kUnit * work.w_stride - pass.begin * bytes * kLanes;
  }
  // The panels of a unit share the rows of the next pass.
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t row = p + i * kUnit;
    if (pass.next && row < pass.rows) t->x_ahead[i] = pass.next + row * a->x_stride * x_bytes;
  }
}

template <class Set, int kX, int kDtype>
void sum_rows(const Work& work, const Pass& pass, float* sum) {
  const tw_matmul_args* a = work.a;
  const int64_t bytes = (int64_t)tw_dtype_bytes(kDtype), group = tw_k_group(kDtype);
  const int64_t x_bytes = (int64_t)tw_dtype_bytes(kX);
  const char* from = (const char*)a->x + (pass.row * a->x_stride + pass.begin) * x_bytes;
  float x[kRows * kStride];
  for (int64_t r = 0; r < pass.rows; ++r) {
    widen<Set, kX>(from + r * a->x_stride * x_bytes, pass.depth, x + r * kStride);
  }
  const int64_t at_once = Set::panels_at_once(kDtype, pass.rows);
  for (int64_t p = 0; p < work.panels; p += at_once) {
    const int64_t panels = at_most(at_once, work.panels - p);
    const char* w = (const char*)a->w + (work.panel + p) * work.w_stride + pass.begin * bytes * kLanes;
    Tile t = {x,
              w,
              work.w_stride,
              (pass.depth + group - 1) / group,
              pass.begin == 0,
              sum + p * kLanes,
              0,
              {(const char*)x, (const char*)x}};
    look_ahead<kX, kDtype>(work, pass, p, panels, &t);
    micro_for<Set, kDtype>(pass.rows, panels)(&t);
  }
}

template <class Set, int kX, int kDtype>
void sum_chunk(const Work& work, int64_t row, int64_t rows, float* sum) {
  const tw_matmul_args* a = work.a;
  const int64_t passes = (rows + kRows - 1) / kRows;
  const auto x_at = [&](int64_t r, int64_t k) {
    return (const char*)a->x + ((row + r) * a->x_stride + k) * (int64_t)tw_dtype_bytes(kX);
  };
  int64_t begin = 0;
  do {
    const int64_t depth = at_most(kBlock, a->k - begin);
    for (int64_t i = 0; i < passes; ++i) {
      const int64_t first = rows * i / passes, end = rows * (i + 1) / passes;  // nearly equal parts
      const bool last = i + 1 == passes;
      const char* next = !last ? x_at(end, begin) : begin + depth < a->k ? x_at(0, begin + depth) : nullptr;
      const Pass pass = {row + first, end - first, begin, depth, next, last};
      sum_rows<Set, kX, kDtype>(work, pass, sum + first * kUnit * kLanes);
    }
    begin += kBlock;
  } while (begin < a->k);
}

template <class Set, int kX, int kDtype>
void matmul(const tw_matmul_args* args) {
  const tw_matmul_args a = *args;  // a copy: y cannot alias it
  float sum[kChunk * kUnit * kLanes];
  const FinishRow finish = finish_row_for<typename Set::Isa>(a.epilogue);
  Work work = {&a, 0, 0, (int64_t)tw_panel_bytes(kDtype, (size_t)a.k)};
  for (work.panel = a.panel_begin; work.panel < a.panel_end; work.panel += kUnit) {
    work.panels = at_most(kUnit, a.panel_end - work.panel);
    for (int64_t row = 0; row < a.rows; row += kChunk) {
      const int64_t rows = at_most(kChunk, a.rows - row);
      sum_chunk<Set, kX, kDtype>(work, row, rows, sum);
      for (int64_t r = 0; r < rows; ++r) {
        finish(a, row + r, work.panel, work.panels, sum + r * kUnit * kLanes);
      }
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_MATMUL_WIDENED_H_
