// The estimates for any instruction set: `Row` has sixteen floats, in one register or more.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_VECTOR_H_

#include "plugins/logits/definition.h"
#include "plugins/logits/weight.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// The last `count` values of a row, and -inf up to the next whole group.
struct Padded {
  float x[TW_ROW_BLOCK];
  int64_t count;
  Padded(const float* from, int64_t n) : count((n + TW_ROW_GROUP - 1) / TW_ROW_GROUP * TW_ROW_GROUP) {
    memcpy(x, from, (size_t)n * sizeof(float));
    for (int64_t i = n; i < count; ++i) x[i] = -INFINITY;
  }
};

// count must be a multiple of TW_ROW_GROUP.
template <typename Row>
TW_INLINE float largest(const float* x, int64_t count, int32_t* nan) {
  typename Row::Floats max[4];
  for (int j = 0; j < 4; ++j) max[j] = Row::all(-INFINITY);
  typename Row::Unordered unordered = Row::ordered();
  for (int64_t i = 0; i < count; i += TW_ROW_GROUP) {
    typename Row::Floats v[4];
    TW_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = Row::load(x + i + j * TW_LANES);
    Row::note(&unordered, v[0], v[1]);
    Row::note(&unordered, v[2], v[3]);
    TW_UNROLL
    for (int j = 0; j < 4; ++j) max[j] = Row::max(v[j], max[j]);
  }
  *nan |= Row::any(unordered);
  return Row::largest(Row::max(Row::max(max[0], max[1]), Row::max(max[2], max[3])));
}

template <typename Row>
int32_t maxima(const float* x, int64_t count, int64_t block, float* out) {
  int32_t nan = 0;
  for (int64_t i = 0; i < count; i += block) {
    const int64_t part = count - i < block ? count - i : block;
    const int64_t whole = part / TW_ROW_GROUP * TW_ROW_GROUP;
    float max = largest<Row>(x + i, whole, &nan);
    if (whole < part) {
      const Padded rest(x + i + whole, part - whole);
      const float last = largest<Row>(rest.x, rest.count, &nan);
      max = last > max ? last : max;
    }
    *out++ = max;
  }
  return nan;
}

// Computes exp(score) / 2^power.
template <typename Row>
struct Weight {
  typename Row::Floats lowest, round;
  explicit TW_INLINE Weight(float power)
      : lowest(Row::all((power + TW_WEIGHT_LOWEST) * TW_LN2)), round(Row::all(TW_WEIGHT_ROUND - power)) {}

  TW_INLINE typename Row::Floats operator()(typename Row::Floats score) const {
    score = Row::max(score, lowest);
    const auto high = Row::all(TW_LOG2E_HIGH);
    const auto shifted = Row::fma(score, high, round);
    auto f = Row::fma_minus(score, high, Row::sub(shifted, round));
    f = Row::fma(score, Row::all(TW_LOG2E_LOW), f);
    auto p = Row::fma(Row::all(TW_WEIGHT_C6), f, Row::all(TW_WEIGHT_C5));
    p = Row::fma(p, f, Row::all(TW_WEIGHT_C4));
    p = Row::fma(p, f, Row::all(TW_WEIGHT_C3));
    p = Row::fma(p, f, Row::all(TW_WEIGHT_C2));
    p = Row::fma(p, f, Row::all(TW_WEIGHT_C1));
    p = Row::fma(p, f, Row::all(TW_WEIGHT_C0));
    return Row::times_power(p, shifted);
  }
};

// Computes the same for the score x / divisor.
template <typename Row>
struct DividedWeight {
  Weight<Row> weight;
  float divisor;
  TW_INLINE typename Row::Floats operator()(typename Row::Floats x) const {
    return weight(Row::divide(x, divisor));
  }
};

// Computes tw_rough_weight().
template <typename Row>
struct RoughWeight {
  typename Row::Floats slope, start;
  TW_INLINE RoughWeight(float scale, float power)
      : slope(Row::all(scale * TW_ROUGH_ONE)), start(Row::all((TW_ROUGH_BIAS - power) * TW_ROUGH_ONE)) {}
  TW_INLINE typename Row::Floats operator()(typename Row::Floats x) const {
    return Row::bits_of(Row::max(Row::fma(x, slope, start), Row::all(0)));
  }
};

// count must be a multiple of TW_ROW_GROUP.
template <typename Row, typename Fn>
TW_INLINE double weight_sum(const float* x, int64_t count, const Fn& weight) {
  typename Row::Doubles lanes = Row::zero();
  for (int64_t i = 0; i < count; i += TW_ROW_GROUP) {
    typename Row::Floats w[4];
    TW_UNROLL
    for (int j = 0; j < 4; ++j) w[j] = weight(Row::load(x + i + j * TW_LANES));
    Row::accumulate(&lanes, Row::add(Row::add(w[0], w[1]), Row::add(w[2], w[3])));
  }
  return Row::tree_sum(lanes);
}

// Weighs one block of whole groups. It reads the block once for the maximum, and once more while the block is
// in the cache.
template <typename Row>
TW_INLINE void weigh_block(const float* x, int64_t count, float divisor, float* max, int32_t* nan,
                           tw_row_block* block) {
  const float scale = TW_LOG2E_HIGH / divisor;
  block->max = largest<Row>(x, count, nan);
  *max = block->max > *max ? block->max : *max;
  block->power = tw_weight_power(*max / divisor);
  block->rough = (*max - block->max) * scale > TW_ROUGH_FROM;
  if (*max == -INFINITY) {
    block->sum = 0;
  } else if (block->rough) {
    block->sum = weight_sum<Row>(x, count, RoughWeight<Row>(scale, block->power));
  } else if (divisor == 1.0f) {
    block->sum = weight_sum<Row>(x, count, Weight<Row>(block->power));
  } else {
    block->sum = weight_sum<Row>(x, count, DividedWeight<Row>{Weight<Row>(block->power), divisor});
  }
}

template <typename Row>
int32_t weigh(const float* x, int64_t count, float divisor, tw_row_block* blocks) {
  int32_t nan = 0;
  float max = -INFINITY;
  int64_t i = 0;
  for (; i + TW_ROW_BLOCK <= count; i += TW_ROW_BLOCK)
    weigh_block<Row>(x + i, TW_ROW_BLOCK, divisor, &max, &nan, blocks++);
  if (i < count) {
    const Padded rest(x + i, count - i);
    weigh_block<Row>(rest.x, rest.count, divisor, &max, &nan, blocks);
  }
  return nan;
}

// count must be a multiple of TW_ROW_GROUP.
template <typename Row, int kBounds>
TW_INLINE void add_weights_above(const float* x, int64_t count, float divisor, double shift,
                                 const float* bounds, double* sums) {
  typename Row::Doubles lanes[kBounds];
  TW_UNROLL
  for (int b = 0; b < kBounds; ++b) lanes[b] = Row::zero();
  for (int64_t i = 0; i < count; i += 2 * TW_LANES) {
    const auto v = Row::load(x + i), next = Row::load(x + i + TW_LANES);
    const bool one = divisor == 1.0f;
    const auto w = Row::wide_weights(one ? v : Row::divide(v, divisor), shift);
    const auto next_w = Row::wide_weights(one ? next : Row::divide(next, divisor), shift);
    TW_UNROLL
    for (int b = 0; b < kBounds; ++b) Row::add_above(&lanes[b], v, bounds[b], w);
    TW_UNROLL
    for (int b = 0; b < kBounds; ++b) Row::add_above(&lanes[b], next, bounds[b], next_w);
  }
  for (int b = 0; b < kBounds; ++b) sums[b] += Row::tree_sum(lanes[b]);
}

template <typename Row>
void weights_above(const float* x, int64_t count, float divisor, double shift, int32_t bounds_count,
                   const float* bounds, double* sums) {
  if (count % TW_ROW_GROUP) {
    const Padded rest(x, count);
    weights_above<Row>(rest.x, rest.count, divisor, shift, bounds_count, bounds, sums);
  } else if (bounds_count == 1) {
    add_weights_above<Row, 1>(x, count, divisor, shift, bounds, sums);
  } else {
    add_weights_above<Row, TW_ROW_BOUNDS>(x, count, divisor, shift, bounds, sums);
  }
}

// Returns 2^y for a register of doubles.
template <typename Wide>
TW_INLINE typename Wide::Vector wide_weight(typename Wide::Vector y) {
  y = Wide::max(y, Wide::all(TW_WIDE_LOWEST));
  const auto shifted = Wide::add(y, Wide::all(TW_WIDE_ROUND));
  const auto f = Wide::sub(y, Wide::sub(shifted, Wide::all(TW_WIDE_ROUND)));
  auto p = Wide::fma(Wide::all(TW_WIDE_C7), f, Wide::all(TW_WIDE_C6));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C5));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C4));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C3));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C2));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C1));
  p = Wide::fma(p, f, Wide::all(TW_WIDE_C0));
  return Wide::times_power(p, shifted);
}

template <typename Row>
int64_t collect(const float* x, int64_t count, float low, float high, int32_t first, float* values,
                int32_t* ids) {
  int64_t found = 0, i = 0;
  for (; i + TW_LANES <= count; i += TW_LANES) {
    found += Row::collect(x + i, low, high, first + (int32_t)i, values + found, ids + found);
  }
  for (; i < count; ++i) {
    if (!(x[i] >= low && x[i] <= high)) continue;
    values[found] = x[i];
    ids[found++] = first + (int32_t)i;
  }
  return found;
}

// Computes exp_negative() of definition.h for each lane. FMA is used only where the product is exact.
template <typename Wide, int kCount>
TW_INLINE void exp_lanes(typename Wide::Vector* x) {
  const double taylor[] = {1.0 / 479001600.0,
                           1.0 / 39916800.0,
                           1.0 / 3628800.0,
                           1.0 / 362880.0,
                           1.0 / 40320.0,
                           1.0 / 5040.0,
                           1.0 / 720.0,
                           1.0 / 120.0,
                           1.0 / 24.0,
                           1.0 / 6.0,
                           0.5,
                           1.0,
                           1.0};
  typename Wide::Vector shifted[kCount], r[kCount], p[kCount];
  TW_UNROLL
  for (int j = 0; j < kCount; ++j) {
    shifted[j] = Wide::add(Wide::mul(x[j], Wide::all(TW_EXP64_LOG2E)), Wide::all(TW_EXP64_ROUND));
    const auto n = Wide::sub(shifted[j], Wide::all(TW_EXP64_ROUND));
    // The first product is exact: the constant has 33 bits.
    r[j] = Wide::sub(Wide::minus_product(x[j], n, Wide::all(TW_EXP64_LN2_HIGH)),
                     Wide::mul(n, Wide::all(TW_EXP64_LN2_LOW)));
    p[j] = Wide::all(1.0 / 6227020800.0);
  }
  TW_UNROLL
  for (int i = 0; i < 13; ++i) {
    TW_UNROLL
    for (int j = 0; j < kCount; ++j) p[j] = Wide::add(Wide::mul(p[j], r[j]), Wide::all(taylor[i]));
  }
  TW_UNROLL
  for (int j = 0; j < kCount; ++j) x[j] = Wide::zero_below_700(Wide::times_power(p[j], shifted[j]), x[j]);
}

// Adds the exponentials of kCount registers to the sums of the lanes; the registers do not depend on each
// other.
template <typename Wide, int kCount>
TW_INLINE void add_exp(const float* x, double max, typename Wide::Vector* sums) {
  constexpr int kRegisters = 8 / Wide::kLanes;
  typename Wide::Vector v[kCount];
  TW_UNROLL
  for (int j = 0; j < kCount; ++j) v[j] = Wide::sub(Wide::widen(x + j * Wide::kLanes), Wide::all(max));
  exp_lanes<Wide, kCount>(v);
  TW_UNROLL
  for (int j = 0; j < kCount; ++j) sums[j % kRegisters] = Wide::add(sums[j % kRegisters], v[j]);
}

template <typename Wide>
double sum_exp(const float* x, int64_t count, double max) {
  constexpr int kRegisters = 8 / Wide::kLanes, kAtOnce = 4;
  typename Wide::Vector sums[kRegisters];
  for (int r = 0; r < kRegisters; ++r) sums[r] = Wide::all(0);
  int64_t i = 0;
  for (; i + kAtOnce * Wide::kLanes <= count; i += kAtOnce * Wide::kLanes)
    add_exp<Wide, kAtOnce>(x + i, max, sums);
  for (; i + 8 <= count; i += 8) add_exp<Wide, kRegisters>(x + i, max, sums);
  double lanes[8];
  for (int r = 0; r < kRegisters; ++r) Wide::store(lanes + r * Wide::kLanes, sums[r]);
  return tw_finish_sum(lanes, x + i, count - i, max);
}

// Takes eight values at a time, so that their exponentials hide the additions, each of which waits for the
// one before.
template <typename Wide>
double exp_all(const float* x, int64_t count, double max, double* out) {
  constexpr int kRegisters = 8 / Wide::kLanes;
  double total = 0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    typename Wide::Vector v[kRegisters];
    TW_UNROLL
    for (int j = 0; j < kRegisters; ++j)
      v[j] = Wide::sub(Wide::widen(x + i + j * Wide::kLanes), Wide::all(max));
    exp_lanes<Wide, kRegisters>(v);
    TW_UNROLL
    for (int j = 0; j < kRegisters; ++j) Wide::store(out + i + j * Wide::kLanes, v[j]);
    TW_UNROLL
    for (int j = 0; j < 8; ++j) total += out[i + j];
  }
  for (; i < count; ++i) total += out[i] = exp_negative((double)x[i] - max);
  return total;
}

template <typename Row, typename Wide>
const tw_logits_loops* logits_loops() {
  static const tw_logits_loops loops = {1,
                                        maxima<Row>,
                                        weigh<Row>,
                                        weights_above<Row>,
                                        collect<Row>,
                                        exp_all<Wide>,
                                        sum_exp<Wide>,
                                        tw_count_greater,
                                        tw_divide,
                                        tw_mask};
  return &loops;
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_VECTOR_H_
