// quantize_weights for every instruction set. It gives the same bytes as scalar_weights.cc.
//
// Lanes are rows, as in scalar_weights.cc: a group is first laid out as [elements][16], and a vector goes
// through it for every scale that is tried. `Set` is one of plugins/common with functions for
// integers: Ints, narrow, narrow_f16, power_below, integers, code_of_e4m3, bits_of, shifted_or and put; and
// with gather(args, begin, size, x), which writes columns [begin, begin + size) of the 16 rows as x
// [size][16]. Rows and columns that do not exist are zeros.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_WEIGHTS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_WEIGHTS_H_

#include "plugins/common/bf16.h"
#include "plugins/common/exp.h"
#include "plugins/common/vector.h"
#include "plugins/quantized_matmul/weights.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// The search for the scales of one group, for as many rows as a vector has lanes. kValues: a tw_values.
// kBits: of a weight. kZeros: whether weights have zero points.
template <class Set, int kValues, int kBits, bool kZeros>
struct Search {
  using Vector = typename Set::Vector;

  const float* x;  // [size][16]
  int64_t size;
  SearchOf format;
  Vector best, scale;  // the best error and the scale so far
  Vector zero;         // the zero point; 0 without zero points
  Vector low, high;    // the range of values less the zero point
  Vector largest, weight, none;
  Vector least, most;  // of the values and 0

  TW_INLINE Vector at(int64_t k) const { return Set::load(x + k * TW_LANES, Set::kLanes); }

  static TW_INLINE Vector inverse_of(Vector s) {
    const Vector zero = Set::all(0.0f);
    return Set::choose(Set::less(Set::abs(s), Set::all(kTiny)), zero, Set::div(Set::all(1.0f), s));
  }

  // Rounds to nearest even, by the rounding of float addition.
  static TW_INLINE Vector nearest(Vector v) {
    const Vector round = Set::all(TW_EXP_ROUND);
    return Set::sub(Set::add(v, round), round);
  }

  // Rounds to the nearest number of E4M3 as nearest_e4m3 of scalar_weights.cc does.
  static TW_INLINE Vector nearest_e4m3(Vector v) {
    const Vector size = Set::abs(v), power = Set::max(Set::power_below(size), Set::all(0x1p-6f));
    const Vector round = Set::mul(power, Set::all(0x1.8p20f));
    return Set::with_sign(Set::sub(Set::add(size, round), round), v);
  }

  // Returns weights over their scale.
  static TW_INLINE Vector scaled(Vector v, Vector s, Vector inverse) {
    return kValues == TW_E4M3 ? Set::div(v, s) : Set::mul(v, inverse);
  }

  // Returns the nearest value of the format less the zero point, ties to even.
  TW_INLINE Vector value_of(Vector v) const {
    if (kValues == TW_E4M3) return nearest_e4m3(v);
    const Vector kept = Set::min(Set::max(v, low), high);
    if (kValues != TW_E2M1) return nearest(kept);
    // Doubled E2M1 numbers have steps of 1 below 4, of 2 below 8, and of 4 below 12.
    const Vector size = Set::abs(kept), four = Set::all(4.0f), eight = Set::all(8.0f);
    const Vector small = nearest(kept),
                 middle = Set::mul(nearest(Set::mul(kept, Set::all(0.5f))), Set::all(2.0f));
    const Vector large = Set::mul(nearest(Set::mul(kept, Set::all(0.25f))), four);
    return Set::choose(Set::less(size, four), small, Set::choose(Set::less(size, eight), middle, large));
  }

  // Returns the bits that stand for a value less the zero point.
  TW_INLINE typename Set::Ints code_of(Vector v) const {
    if (kValues == TW_E4M3) return Set::code_of_e4m3(v);
    if (kValues == TW_BYTES) {
      const Vector stored = kZeros ? Set::sub(Set::add(v, zero), Set::all(128.0f)) : v;
      return Set::bits_of(Set::integers(stored), 0, 255);
    }
    if (kValues == TW_CODES) return Set::integers(kZeros ? Set::add(v, zero) : Set::sub(v, low));
    const Vector size = Set::abs(v), four = Set::all(4.0f), eight = Set::all(8.0f);
    const Vector middle = Set::add(Set::mul(size, Set::all(0.5f)), Set::all(2.0f));
    const Vector large = Set::add(Set::mul(size, Set::all(0.25f)), four);
    const Vector code =
        Set::choose(Set::less(size, four), size, Set::choose(Set::less(size, eight), middle, large));
    return Set::integers(Set::choose(Set::less(v, Set::all(0.0f)), Set::add(code, eight), code));
  }

  // Finds the signed value of the largest magnitude (the first of equals), the sum of squares, and `none`,
  // which stays 0 unless a value is infinite or NaN.
  void survey() {
    Vector size_of_largest = Set::all(0.0f);
    largest = weight = none = least = most = size_of_largest;
    for (int64_t k = 0; k < size; ++k) {
      const Vector value = at(k), magnitude = Set::abs(value);
      const auto more = Set::less(size_of_largest, magnitude);
      largest = Set::choose(more, value, largest);
      size_of_largest = Set::choose(more, magnitude, size_of_largest);
      if (kZeros) least = Set::min(least, value), most = Set::max(most, value);
      weight = Set::add(weight, Set::mul(value, value));
      none = Set::add(none, Set::mul(value, Set::all(0.0f)));
    }
  }

  Vector squared_error(Vector s) const {
    const Vector inverse = inverse_of(s);
    Vector sum = Set::all(0.0f);
#pragma GCC unroll 4
    for (int64_t k = 0; k < size; ++k) {
      const Vector value = at(k);
      const Vector q = value_of(scaled(value, s, inverse));
      const Vector difference = Set::sub(value, Set::mul(q, s));
      sum = Set::add(sum, Set::mul(difference, difference));
    }
    return sum;
  }

  void try_ladder(Vector top) {
    for (int i = 0; i < format.steps; ++i) {
      Vector s = Set::mul(top, Set::all(format.ladder[i]));
      if (format.narrow == TW_SCALES_BF16) s = Set::narrow(s);
      if (format.narrow == TW_SCALES_F16) s = Set::narrow_f16(s);
      s = Set::choose(Set::less(Set::abs(s), Set::all(kTiny)), Set::all(least_scale(kValues)), s);
      const Vector error = squared_error(s);
      const auto better = Set::less(error, best);
      best = Set::choose(better, error, best);
      scale = Set::choose(better, s, scale);
    }
  }

  void run() {
    survey();
    best = Set::all(INFINITY);
    scale = zero = Set::all(0.0f);
    low = Set::all(format.low), high = Set::all(format.high);
    if (kZeros) return run_with_zeros();
    const Vector magnitude = Set::abs(largest);
    if (kValues == TW_BYTES) return try_ladder(Set::div(magnitude, Set::all(127.0f)));
    if (kValues == TW_E4M3) return try_ladder(Set::div(magnitude, Set::all(kLargestE4m3)));
    if (kValues == TW_E2M1) return try_ladder(Set::div(Set::power_below(magnitude), Set::all(8.0f)));
    try_ladder(Set::div(largest, low));
    try_ladder(Set::div(magnitude, high));
  }

  // Stretches the range of values, 0 included, over the format's, and keeps the zero point.
  void run_with_zeros() {
    const Vector end = Set::all(format.high);
    const Vector top = Set::sub(Set::div(most, end), Set::div(least, end));
    zero = Set::min(nearest(Set::mul(Set::negate(least), inverse_of(top))), end);
    low = Set::sub(low, zero), high = Set::sub(high, zero);
    try_ladder(top);
  }

  // `to` is the place of the first row's bytes in the first line.
  void write(char* to) const {
    constexpr int kElements = kBits == 3 ? 16 : 32 / kBits;  // of a line
    const Vector inverse = inverse_of(scale);
    const typename Set::Ints none_yet = {};
    typename Set::Ints upper = none_yet;
    for (int64_t k = 0; k < size; k += kElements, to += 64) {
      typename Set::Ints line = {};
      TW_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const auto code = code_of(value_of(scaled(at(k + e), scale, inverse)));
        if (kBits == 3) {
          line = Set::shifted_or(line, Set::bits_of(code, 0, 3), e % 4 * 8 + e / 4 * 2);
          upper = Set::shifted_or(upper, Set::bits_of(code, 2, 1), (int)(e % 4 * 8 + e / 4 + k % 32 / 4));
        } else {
          line = Set::shifted_or(line, code, e % 4 * 8 + e / 4 * kBits);
        }
      }
      Set::put(to, line);
      if (kBits == 3 && k % 32 == 16) {
        to += 64;
        Set::put(to, upper);
        upper = none_yet;
      }
    }
  }
};

// The search for the steps and offsets of one group (two_levels.py), for as many rows as a vector has lanes.
template <class Set>
struct StepSearch {
  using Vector = typename Set::Vector;

  const float* x;  // [size][16]
  int64_t size;
  Vector scale, inverse;      // of the rows
  Vector best, step, offset;  // the best error so far, and what gives it

  TW_INLINE Vector at(int64_t k) const { return Set::load(x + k * TW_LANES, Set::kLanes); }
  static TW_INLINE Vector whole(Vector v) {
    const Vector round = Set::all(TW_EXP_ROUND);
    return Set::sub(Set::add(v, round), round);
  }
  static TW_INLINE Vector between(float low, Vector v, Vector high) {
    return Set::min(Set::max(v, Set::all(low)), high);
  }

  TW_INLINE Vector code(Vector value, Vector inverse_step, Vector o) const {
    const Vector above = Set::mul(Set::sub(Set::mul(value, inverse), o), inverse_step);
    return between(0.0f, whole(above), Set::all(kCodes));
  }

  void consider(Vector s, Vector o) {
    const Vector inverse_step = Set::div(Set::all(1.0f), s);
    Vector sum = Set::all(0.0f);
#pragma GCC unroll 4
    for (int64_t k = 0; k < size; ++k) {
      const Vector value = at(k);
      const Vector rounded = Set::add(o, Set::mul(code(value, inverse_step, o), s));
      const Vector difference = Set::sub(value, Set::mul(rounded, scale));
      sum = Set::add(sum, Set::mul(difference, difference));
    }
    const auto better = Set::less(sum, best);
    best = Set::choose(better, sum, best);
    step = Set::choose(better, s, step);
    offset = Set::choose(better, o, offset);
  }

  // Finds the least and the greatest weight of a group.
  void find_ends(Vector* low, Vector* high) const {
    *low = *high = at(0);
    for (int64_t k = 1; k < size; ++k) *low = Set::min(*low, at(k)), *high = Set::max(*high, at(k));
  }

  void run() {
    Vector low, high;
    find_ends(&low, &high);
    low = Set::mul(low, inverse), high = Set::mul(high, inverse);
    best = Set::all(INFINITY), step = Set::all(1.0f), offset = Set::all(0.0f);
    const Vector middle = Set::mul(Set::add(low, high), Set::all(0.5f));
    const Vector share = Set::mul(Set::sub(high, low), Set::all(1.0f / kCodes));
    const Vector reaching = whole(Set::add(share, Set::all(0.5f)));
    for (const float less : kSteps) {
      const Vector s = between(1.0f, Set::sub(reaching, Set::all(less)), Set::all(kMostStep));
      const Vector most = Set::sub(Set::all(127.0f), Set::mul(Set::all(kCodes), s));
      for (const float centre : kCentres)
        consider(s, between(-128.0f, whole(Set::sub(middle, Set::mul(Set::all(centre), s))), most));
    }
  }

  // `to` is the place of the first row's bytes in the first line. group: the columns of a whole group.
  void write(char* to, int64_t group) const {
    const Vector inverse_step = Set::div(Set::all(1.0f), step);
    for (int64_t k = 0; k < group; k += 8, to += 64) {
      typename Set::Ints line = {};
      TW_UNROLL
      for (int e = 0; e < 8; ++e)
        line = Set::shifted_or(line, Set::integers(code(at(k + e), inverse_step, offset)),
                               e % 4 * 8 + e / 4 * 4);
      Set::put(to, line);
    }
  }
};

// Returns the columns of group i, which are fewer where the row ends.
inline int64_t columns_of(const tw_quantize_weights_args* a, int64_t i) {
  const int64_t left = a->k - i * a->group;
  return left < a->group ? left : a->group;
}

// Writes the scales of the rows of a panel of two levels.
template <class Set>
void write_row_scales(const tw_quantize_weights_args* a, int64_t groups) {
  using Vector = typename Set::Vector;
  Vector range[TW_LANES / Set::kLanes], largest[TW_LANES / Set::kLanes];
  for (int part = 0; part < TW_LANES / Set::kLanes; ++part) range[part] = largest[part] = Set::all(0.0f);
  const Vector reach = Set::all(kCodes * kMostStep);
  for (int64_t i = 0; i < groups; ++i) {
    Set::gather(a, i * a->group, a->group, a->x);
    for (int part = 0; part < TW_LANES / Set::kLanes; ++part) {
      StepSearch<Set> search;
      search.x = a->x + part * Set::kLanes, search.size = columns_of(a, i);
      Vector low, high;
      search.find_ends(&low, &high);
      range[part] = Set::max(range[part], Set::sub(Set::div(high, reach), Set::div(low, reach)));
      largest[part] = Set::max(largest[part], Set::max(high, Set::negate(low)));
    }
  }
  for (int part = 0; part < TW_LANES / Set::kLanes; ++part) {
    const Vector least = Set::max(range[part], Set::div(largest[part], Set::all(127.0f)));
    const Vector kept = Set::choose(Set::less(least, Set::all(kTiny)), Set::all(0.0f), least);
    Set::store(a->panel, TW_F32, part * Set::kLanes, Set::kLanes, kept);
  }
}

// Adds what a group of two levels loses to the sums of a panel.
inline void measure_group(const tw_quantize_weights_args* a, const float* error) {
  float weight[TW_LANES] = {}, none[TW_LANES] = {};
  for (int64_t k = 0; k < a->group; ++k) {
    const float* x = a->x + k * TW_LANES;
    for (int lane = 0; lane < TW_LANES; ++lane)
      weight[lane] += x[lane] * x[lane], none[lane] += x[lane] * 0.0f;
  }
  for (int lane = 0; lane < TW_LANES; ++lane) {
    *a->weight += (double)weight[lane];
    *a->error += (double)error[lane];
    if (none[lane] != 0.0f) *a->finite = 0;
  }
}

template <class Set>
void quantize_to_steps(const tw_quantize_weights_args* a) {
  const int64_t groups = tw_quantized_groups(a->k, a->group);
  write_row_scales<Set>(a, groups);
  for (int64_t i = 0; i < groups; ++i) {
    float error[TW_LANES], step[TW_LANES], offset[TW_LANES];
    Set::gather(a, i * a->group, a->group, a->x);
    for (int lane = 0; lane < TW_LANES; lane += Set::kLanes) {
      StepSearch<Set> search;
      search.x = a->x + lane, search.size = columns_of(a, i);
      search.scale = Set::load((const float*)a->panel + lane, Set::kLanes);
      search.inverse = Search<Set, TW_CODES, 4, false>::inverse_of(search.scale);
      search.run();
      search.write((char*)a->panel + tw_quantized_group_offset(a->dtype, a->k, a->group, i) + lane * 4,
                   a->group);
      Set::store(error, TW_F32, lane, Set::kLanes, search.best);
      Set::store(step, TW_F32, lane, Set::kLanes, search.step);
      Set::store(offset, TW_F32, lane, Set::kLanes, search.offset);
    }
    measure_group(a, error);
    write_steps(step, offset, a, i);
  }
}

template <class Set, int kValues, int kBits, bool kZeros>
void quantize_panel_group(const tw_quantize_weights_args* a, int64_t i, int64_t size,
                          const SearchOf& format) {
  float error[TW_LANES], weight[TW_LANES], none[TW_LANES], scale[TW_LANES], zero[TW_LANES];
  char* values = (char*)a->panel + tw_quantized_group_offset(a->dtype, a->k, a->group, i);
  for (int lane = 0; lane < TW_LANES; lane += Set::kLanes) {
    Search<Set, kValues, kBits, kZeros> search;
    search.x = a->x + lane, search.size = size, search.format = format;
    search.run();
    search.write(values + lane * 4);
    Set::store(error, TW_F32, lane, Set::kLanes, search.best);
    Set::store(weight, TW_F32, lane, Set::kLanes, search.weight);
    Set::store(none, TW_F32, lane, Set::kLanes, search.none);
    Set::store(scale, TW_F32, lane, Set::kLanes, search.scale);
    Set::store(zero, TW_F32, lane, Set::kLanes, search.zero);
  }
  for (int lane = 0; lane < TW_LANES; ++lane) {
    *a->weight += (double)weight[lane];
    *a->error += (double)error[lane];
    if (none[lane] != 0.0f) *a->finite = 0;
  }
  write_zeros(zero, a, i);
  write_scales(scale, a->dtype, a->group,
               (char*)a->panel + tw_quantized_scale_offset(a->dtype, a->k, a->group, i));
}

template <class Set, int kValues, int kBits, bool kZeros>
void quantize_panel(const tw_quantize_weights_args* a) {
  const int64_t size = tw_quantized_group(a->k, a->group), groups = tw_quantized_groups(a->k, a->group);
  const SearchOf format = search_of(a->dtype, a->group);
  for (int64_t i = 0; i < groups; ++i) {
    Set::gather(a, i * size, size, a->x);
    quantize_panel_group<Set, kValues, kBits, kZeros>(a, i, size, format);
  }
}

template <class Set, int kValues, int kBits>
void quantize_values(const tw_quantize_weights_args* a) {
  tw_codec(a->dtype).zeros != 0 ? quantize_panel<Set, kValues, kBits, true>(a)
                                : quantize_panel<Set, kValues, kBits, false>(a);
}

template <class Set>
void quantize_weights(const tw_quantize_weights_args* a) {
  if (tw_has_steps(a->dtype)) return quantize_to_steps<Set>(a);
  const tw_weight_codec c = tw_codec(a->dtype);
  if (c.values == TW_E2M1) return quantize_panel<Set, TW_E2M1, 4, false>(a);
  if (c.values == TW_E4M3) return quantize_panel<Set, TW_E4M3, 8, false>(a);
  switch (c.bits) {
    case 2:
      return quantize_values<Set, TW_CODES, 2>(a);
    case 3:
      return quantize_values<Set, TW_CODES, 3>(a);
    case 4:
      return quantize_values<Set, TW_CODES, 4>(a);
    default:
      return quantize_values<Set, TW_BYTES, 8>(a);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_VECTOR_WEIGHTS_H_
