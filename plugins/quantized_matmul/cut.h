// Cuts a quantized_matmul in 16 registers of 256 bits, or 32 of 128, into calls of a micro kernel. (AVX-512
// has room for the float sums in registers, and a cut of its own in x86_avx512vnni.cc.)
//
//   for each unit of 4 panels, for each chunk of rows, for each block of groups:
//     for each R <= 6 rows of the chunk, for P panels at once, for each group:
//       R x P panels of exact sums in registers, then scaled and added to R x P float sums in the L1 cache
//   then bias, activation, residual and rounding for the chunk
//
// The file of an instruction set defines `Kind`: kDtype of the weights, panels_at_once(rows), micro(rows,
// panels) and finish(args, row, rows, panel, panels, sum).
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_CUT_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_CUT_H_

#include <string.h>

#include "plugins/matmul/vector.h"
#include "plugins/quantized_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kRows = 6;                // the most rows of a micro kernel
constexpr int64_t kChunk = 96;              // rows
constexpr int64_t kBlockBytes = 512 << 10;  // weights of a unit in a block: half the L2 cache

// One group of K for R rows and P panels.
struct Group {
  const int8_t* x;  // first row
  int64_t x_stride;
  const float* x_scale;  // [R]
  const int32_t* x_sum;
  const char* w;  // first panel
  const char* scales;
  const char* zeros;  // zero points, if the weights have them
  int64_t w_stride;   // bytes between panels
  int64_t lines;      // lines of 64 bytes of the group in a panel; if the weights are 2:4 sparse, its blocks
  float* sum;         // [R, kUnit, 16]
};

// Values that are the same for a whole call.
struct Shape {
  int64_t k, group, groups;
  int64_t size;  // stored elements of a group
  int64_t w_stride;
  int64_t block;  // groups in a block: their weights of a unit stay in the L2 cache
  int64_t chunk;  // rows
};

// The part of a call that is computed at once.
struct Part {
  int64_t row, rows;
  int64_t panel, panels;
  int64_t begin, end;  // groups of K
  float* sum;          // [rows, kUnit, 16]
};

template <class Kind>
Shape shape_of(const tw_quantized_matmul_args* a) {
  Shape s;
  s.k = a->matmul.k;
  s.group = a->group;
  s.groups = tw_quantized_groups(s.k, s.group);
  s.size = tw_quantized_group(s.k, s.group);
  s.w_stride = tw_quantized_panel_bytes(Kind::kDtype, s.k, s.group);
  s.block = s.groups;
  if (a->matmul.rows > kRows && s.w_stride * kUnit > kBlockBytes)
    s.block = ceil_div(s.groups, ceil_div(s.w_stride * kUnit, kBlockBytes));
  s.chunk = s.block < s.groups ? kChunk : kRows;
  return s;
}

// Adds a part of R rows and P panels to its sums.
template <class Kind>
void sum_rows(const tw_quantized_matmul_args* a, const Shape& s, const Part& part) {
  const char* w = (const char*)a->matmul.w + part.panel * s.w_stride;
  const auto micro = Kind::micro(part.rows, part.panels);
  Group g = {
      (const int8_t*)a->matmul.x + part.row * a->matmul.x_stride + part.begin * s.size,
      a->matmul.x_stride,
      a->x_scale + part.begin * a->group_stride + part.row,
      a->x_sum + part.begin * a->group_stride + part.row,
      nullptr,
      nullptr,
      nullptr,
      s.w_stride,
      tw_codec(Kind::kDtype).sparse ? s.size / TW_SPARSE_BLOCK : s.size * tw_codec(Kind::kDtype).bits / 32,
      part.sum};
  for (int64_t i = part.begin; i < part.end; ++i) {
    g.w = w + tw_quantized_group_offset(Kind::kDtype, s.k, s.group, i);
    g.scales = w + tw_quantized_scale_offset(Kind::kDtype, s.k, s.group, i);
    g.zeros = w + tw_quantized_zero_offset(Kind::kDtype, s.k, s.group, i);
    micro(&g);
    g.x += s.size, g.x_scale += a->group_stride, g.x_sum += a->group_stride;
  }
}

// Adds a part of a chunk of rows and a unit of panels to its sums.
template <class Kind>
void sum_chunk(const tw_quantized_matmul_args* a, const Shape& s, const Part& part) {
  const int64_t passes = ceil_div(part.rows, kRows);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = part.rows * pass / passes, count = part.rows * (pass + 1) / passes - first;
    const int64_t at_once = Kind::panels_at_once(count);
    for (int64_t p = 0; p < part.panels; p += at_once) {
      sum_rows<Kind>(a, s,
                     {part.row + first, count, part.panel + p, at_most(at_once, part.panels - p), part.begin,
                      part.end, part.sum + (first * kUnit + p) * kLanes});
    }
  }
}

template <class Kind>
void matmul(const tw_quantized_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const Shape s = shape_of<Kind>(args);
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows; row += s.chunk) {
      const int64_t rows = at_most(s.chunk, a->rows - row);
      memset(sum, 0, (size_t)(rows * kUnit * kLanes) * sizeof *sum);
      for (int64_t begin = 0; begin < s.groups; begin += s.block) {
        sum_chunk<Kind>(args, s, {row, rows, panel, panels, begin, at_most(s.groups, begin + s.block), sum});
      }
      Kind::finish(args, row, rows, panel, panels, sum);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_CUT_H_
