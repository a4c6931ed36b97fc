// Cuts a weight_only_matmul for the kernels of every instruction set.
//
// Few rows are summed by sum_few() of `Set`, which decodes in registers. More rows:
//
//   for each unit of 4 panels, for each chunk of rows:
//     for each part of K: decode the unit's weights to floats or bfloat16 in scratch
//       for a few panels, for each R <= 6 rows of the chunk, for each group of the part: micro kernel, then
//       scaled and added
//   then bias, activation, residual and rounding for the chunk
//
// A part is one or more whole groups, or a piece of whole rows. What is decoded has the layout of a float
// matrix (matmul/pack.h). The file of an instruction set defines `Set`: kDtype of what it decodes to,
// decode(), sum(), sum_few() and finish().
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_H_

#include <string.h>

#include "plugins/matmul/vector.h"
#include "plugins/quantized_matmul/decode.h"
#include "plugins/weight_only_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kRows = 6;     // the most rows of a micro kernel
constexpr int64_t kChunk = 192;  // rows: weights are decoded once for them

// Elements of K: those of two decoded panels take half of the L1 cache.
template <int kDtype>
constexpr int64_t kPart = kDtype == TW_BF16 ? 256 : 128;

// Returns up to how many rows of x weights of that many bits are decoded in registers. With more rows, or
// with more work for a weight, it is faster to decode once for all of them.
constexpr int64_t few_rows_with(int bits) { return bits >= 4 ? 6 : 2; }

// How weights are stored, for templates: a tw_values, the bits, and whether there are zero points.
template <int kValues, int kBits, bool kZeros>
struct Form {};

// Calls use() with the form of a codec.
template <class Use>
void for_form(const tw_weight_codec& c, Use use) {
  const bool zeros = c.zeros != 0;
  switch (c.values) {
    case TW_BYTES:
      return zeros ? use(Form<TW_BYTES, 8, true>{}) : use(Form<TW_BYTES, 8, false>{});
    case TW_E2M1:
      return use(Form<TW_E2M1, 4, false>{});
    case TW_E4M3:
      return use(Form<TW_E4M3, 8, false>{});
    default:
      if (c.bits == 4) return zeros ? use(Form<TW_CODES, 4, true>{}) : use(Form<TW_CODES, 4, false>{});
      if (c.bits == 3) return zeros ? use(Form<TW_CODES, 3, true>{}) : use(Form<TW_CODES, 3, false>{});
      return zeros ? use(Form<TW_CODES, 2, true>{}) : use(Form<TW_CODES, 2, false>{});
  }
}

// Where a panel holds what, computed once for a call: tw_quantized_..._offset() of layout.h.
struct Packed {
  int dtype;
  tw_weight_codec codec;
  int64_t k, group, groups;
  int64_t size;         // stored elements of a group
  int64_t group_bytes;  // without scales
  int64_t panel_bytes;

  int64_t header(int64_t i) const { return i / codec.period * (codec.header + codec.period * group_bytes); }
  int64_t scales(int64_t i) const { return header(i) + i % codec.period * TW_LANES * codec.scale_bytes; }
  int64_t zeros(int64_t i) const { return header(i) + codec.zeros + i % codec.period * TW_LANES; }
  int64_t numbers(int64_t i) const { return header(i) + codec.header + i % codec.period * group_bytes; }
};

inline Packed packed_of(const tw_weight_only_matmul_args* a) {
  Packed p;
  p.dtype = a->w_dtype;
  p.codec = tw_codec(a->w_dtype);
  p.k = a->matmul.k, p.group = a->group;
  p.groups = tw_quantized_groups(p.k, p.group);
  p.size = tw_quantized_group(p.k, p.group);
  p.group_bytes = tw_quantized_group_bytes(p.dtype, p.k, p.group);
  p.panel_bytes = tw_quantized_panel_bytes(p.dtype, p.k, p.group);
  return p;
}

// The decoded weights of a unit in a part of K: numbers without their scales, and the scales of each group.
// Panels lie 64 bytes further apart than they need, so that they fall into different sets of the cache.
template <int kDtype>
struct Decoded {
  static constexpr int64_t kBytes = kDtype == TW_BF16 ? 2 : 4;
  static constexpr int64_t kStride = kPart<kDtype> * TW_LANES * kBytes + 64;
  alignas(64) char w[kUnit * kStride];
  alignas(64) float scale[kPart<kDtype> / 32 * kUnit * TW_LANES];
};

// A part of K: elements [begin, end).
struct Part {
  int64_t begin, end;
  int64_t first_group, spans, span;  // groups, and elements of each; of whole rows one, as long as the part
  bool whole;
};

// Decodes a unit of panels in one part of K.
template <class Set>
void decode_unit(const Packed& p, const char* w, int64_t panels, const Part& part, Decoded<Set::kDtype>* to) {
  const int64_t skip = part.whole ? part.begin * TW_LANES * p.codec.bits / 8 : 0;
  const int64_t stored = part.whole ? (part.end - part.begin + 3) / 4 * 4 : part.span;
  for (int64_t s = 0; s < part.spans; ++s) {
    const int64_t i = part.first_group + s;
    for (int64_t panel = 0; panel < panels; ++panel) {
      const char* from = w + panel * p.panel_bytes;
      char* numbers = to->w + panel * Decoded<Set::kDtype>::kStride +
                      s * part.span * TW_LANES * Decoded<Set::kDtype>::kBytes;
      Set::decode(p, from + p.numbers(i) + skip, from + p.zeros(i), stored, numbers);
      Set::scales(p, from + p.scales(i), to->scale + (s * kUnit + panel) * TW_LANES);
    }
  }
}

// Sums the columns of a part for `rows` rows from `row` on. sum: [rows, kUnit, 16].
// The rows go past a few panels at a time, whose weights stay in the L1 cache.
template <class Set>
void sum_part(const tw_matmul_args* a, const Part& part, const Decoded<Set::kDtype>& w, int64_t panels,
              int64_t row, int64_t rows, float* sum) {
  const int64_t passes = ceil_div(rows, Set::kRowsAtOnce);
  const int64_t at_once = Set::panels_at_once(part);
  for (int64_t p = 0; p < panels; p += at_once) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t first = rows * pass / passes, count = rows * (pass + 1) / passes - first;
      Set::sum(a, part, w, p, at_most(at_once, panels - p), row + first, count, sum + first * kUnit * kLanes);
    }
  }
}

// Multiplies the sums of whole rows by the scales.
template <class Set>
void scale_sums(const Decoded<Set::kDtype>& w, int64_t rows, float* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < kUnit * kLanes; ++i) sum[r * kUnit * kLanes + i] *= w.scale[i];
  }
}

template <class Set>
void matmul(const tw_weight_only_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const Packed p = packed_of(args);
  const bool whole = p.group == 0;
  constexpr int64_t depth = kPart<Set::kDtype>;
  const int64_t few = few_rows_with(p.codec.bits);
  const int64_t per_part = whole ? 1 : depth / p.group;  // groups
  Decoded<Set::kDtype> w;
  memset(w.scale, 0, sizeof w.scale);  // those of panels that a unit lacks
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    const char* from = (const char*)a->w + panel * p.panel_bytes;
    for (int64_t row = 0; row < a->rows; row += kChunk) {
      const int64_t rows = at_most(kChunk, a->rows - row);
      memset(sum, 0, (size_t)(rows * kUnit * kLanes) * sizeof *sum);
      if (rows <= few) {
        Set::sum_few(a, p, from, panels, row, rows, panel + kUnit >= a->panel_end, sum);
        Set::finish(a, row, rows, panel, panels, sum);
        continue;
      }
      for (int64_t begin = 0; begin < p.k; begin += depth) {
        const int64_t end = at_most(p.k, begin + depth), group = whole ? 0 : begin / p.group;
        const Part part = {begin, end, group, at_most(per_part, p.groups - group), whole ? depth : p.group,
                           whole};
        decode_unit<Set>(p, from, panels, part, &w);
        sum_part<Set>(a, part, w, panels, row, rows, sum);
      }
      if (whole) scale_sums<Set>(w, rows, sum);
      Set::finish(a, row, rows, panel, panels, sum);
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_VECTOR_H_
