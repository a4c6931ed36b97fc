// Cuts a weight_only_matmul for the kernels of every x86 instruction set.
//
//   for each unit of 4 panels, for each chunk of rows:
//     for each part of K: decode the unit's weights to floats or bfloat16 in scratch, which the L1 cache
//     holds
//       for each R <= 6 rows of the chunk, for each group of the part: micro kernel, then scaled and added
//   then bias, activation, residual and rounding for the chunk
//
// A part is one or more whole groups, or a piece of whole rows. What is decoded has the layout of a float
// matrix (matmul/pack.h). The file of an instruction set defines `Set`: kDtype of what it decodes to,
// decode(), sum() and finish().
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_H_

#include <string.h>

#include "plugins/matmul/x86.h"
#include "plugins/quantized_matmul/decode.h"
#include "plugins/weight_only_matmul/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kRows = 6;     // the most rows of a micro kernel
constexpr int64_t kChunk = 192;  // rows: weights are decoded once for them
constexpr int64_t kPart = 128;   // elements of K
constexpr int64_t kMaxSpans = kPart / 32;

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
  static constexpr int64_t kStride = kPart * TW_LANES * kBytes + 64;
  alignas(64) char w[kUnit * kStride];
  alignas(64) float scale[kMaxSpans * kUnit * TW_LANES];
};

// A part of K: elements [begin, end).
struct Part {
  int64_t begin, end;
  int64_t first_group, spans, span;  // groups, and elements of each; of whole rows one, as long as the part
  bool whole;
};

// Decodes a group by single numbers, for weights that an instruction set has no faster way for.
template <int kDtype>
void decode_numbers(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
  constexpr int64_t kPer = kDtype == TW_BF16 ? 2 : 1;  // elements of K in 4 bytes
  for (int64_t e = 0; e < count; ++e) {
    for (int64_t lane = 0; lane < TW_LANES; ++lane) {
      const float number = tw_quantized_number(p.dtype, from, zeros, e, lane);
      const int64_t at = e / kPer * (TW_LANES * kPer) + lane * kPer + e % kPer;
      if (kDtype == TW_BF16) {
        ((uint16_t*)to)[at] = tw_f32_to_bf16(number);
      } else {
        ((float*)to)[at] = number;
      }
    }
  }
}

// What is taken from codes without zero points: half of the range.
inline int half_range(const Packed& p) { return 1 << (p.codec.bits - 1); }

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
template <class Set>
void sum_part(const tw_matmul_args* a, const Part& part, const Decoded<Set::kDtype>& w, int64_t panels,
              int64_t row, int64_t rows, float* sum) {
  const int64_t passes = ceil_div(rows, Set::kRowsAtOnce);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = rows * pass / passes, count = rows * (pass + 1) / passes - first;
    Set::sum(a, part, w, panels, row + first, count, sum + first * kUnit * kLanes);
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
  const int64_t per_part = whole ? 1 : kPart / p.group;  // groups
  Decoded<Set::kDtype> w;
  memset(w.scale, 0, sizeof w.scale);  // those of panels that a unit lacks
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    const char* from = (const char*)a->w + panel * p.panel_bytes;
    for (int64_t row = 0; row < a->rows; row += kChunk) {
      const int64_t rows = at_most(kChunk, a->rows - row);
      memset(sum, 0, (size_t)(rows * kUnit * kLanes) * sizeof *sum);
      for (int64_t begin = 0; begin < p.k; begin += kPart) {
        const int64_t end = at_most(p.k, begin + kPart), group = whole ? 0 : begin / p.group;
        const Part part = {begin, end, group, at_most(per_part, p.groups - group), whole ? kPart : p.group,
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

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_H_
