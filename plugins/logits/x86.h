// The estimates for any x86 instruction set: `Row` has sixteen floats, in one register or two.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_X86_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_X86_H_

#include "plugins/logits/definition.h"
#include "plugins/logits/weight.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// `count` values, and -inf up to the next whole group: the last ones of a row.
struct Padded {
  float x[TW_ROW_BLOCK];
  int64_t count;
  Padded(const float* from, int64_t n) : count((n + TW_ROW_GROUP - 1) / TW_ROW_GROUP * TW_ROW_GROUP) {
    memcpy(x, from, (size_t)n * sizeof(float));
    for (int64_t i = n; i < count; ++i) x[i] = -INFINITY;
  }
};

// Of whole groups.
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

template <typename Row>
TW_INLINE typename Row::Floats weight(typename Row::Floats y) {
  y = Row::max(y, Row::all(TW_WEIGHT_LOWEST));
  const auto shifted = Row::add(y, Row::all(TW_WEIGHT_ROUND));
  const auto f = Row::sub(y, Row::sub(shifted, Row::all(TW_WEIGHT_ROUND)));
  auto p = Row::fma(Row::all(TW_WEIGHT_C5), f, Row::all(TW_WEIGHT_C4));
  p = Row::fma(p, f, Row::all(TW_WEIGHT_C3));
  p = Row::fma(p, f, Row::all(TW_WEIGHT_C2));
  p = Row::fma(p, f, Row::all(TW_WEIGHT_C1));
  p = Row::fma(p, f, Row::all(TW_WEIGHT_C0));
  return Row::times_power(p, shifted);
}

// Of whole groups.
template <typename Row>
TW_INLINE double weight_sum(const float* x, int64_t count, float scale, float reference) {
  typename Row::Doubles lanes = Row::zero();
  const auto s = Row::all(scale), r = Row::all(-reference);
  for (int64_t i = 0; i < count; i += TW_ROW_GROUP) {
    typename Row::Floats w[4];
    TW_UNROLL
    for (int j = 0; j < 4; ++j) w[j] = weight<Row>(Row::fma(Row::load(x + i + j * TW_LANES), s, r));
    Row::accumulate(&lanes, Row::add(Row::add(w[0], w[1]), Row::add(w[2], w[3])));
  }
  return Row::tree_sum(lanes);
}

// One block, of whole groups: read once for the maximum, and once more while it is near.
template <typename Row>
TW_INLINE void weigh_block(const float* x, int64_t count, float scale, float* max, int32_t* nan,
                           tw_row_block* block) {
  block->max = largest<Row>(x, count, nan);
  *max = block->max > *max ? block->max : *max;
  block->reference = *max * scale;
  block->sum = *max == -INFINITY ? 0 : weight_sum<Row>(x, count, scale, block->reference);
}

template <typename Row>
int32_t weigh(const float* x, int64_t count, float scale, tw_row_block* blocks) {
  int32_t nan = 0;
  float max = -INFINITY;
  int64_t i = 0;
  for (; i + TW_ROW_BLOCK <= count; i += TW_ROW_BLOCK)
    weigh_block<Row>(x + i, TW_ROW_BLOCK, scale, &max, &nan, blocks++);
  if (i < count) {
    const Padded rest(x + i, count - i);
    weigh_block<Row>(rest.x, rest.count, scale, &max, &nan, blocks);
  }
  return nan;
}

template <typename Row>
void weights_above(const float* x, int64_t count, float divisor, double shift, const float* bounds,
                   double* sums) {
  if (count % TW_ROW_GROUP) {
    const Padded rest(x, count);
    weights_above<Row>(rest.x, rest.count, divisor, shift, bounds, sums);
    return;
  }
  typename Row::Doubles lanes[TW_ROW_BOUNDS];
  TW_UNROLL
  for (int b = 0; b < TW_ROW_BOUNDS; ++b) lanes[b] = Row::zero();
  for (int64_t i = 0; i < count; i += TW_LANES) {
    const auto v = Row::load(x + i);
    const auto w = Row::wide_weights(Row::divide(v, divisor), shift);
    TW_UNROLL
    for (int b = 0; b < TW_ROW_BOUNDS; ++b) Row::add_above(&lanes[b], v, bounds[b], w);
  }
  for (int b = 0; b < TW_ROW_BOUNDS; ++b) sums[b] += Row::tree_sum(lanes[b]);
}

// 2^y of a register of doubles.
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

// exp_negative() of definition.h, without FMA as that has none.
template <typename Wide>
TW_INLINE typename Wide::Vector exp_lanes(typename Wide::Vector x) {
  const auto shifted = Wide::add(Wide::mul(x, Wide::all(TW_EXP64_LOG2E)), Wide::all(TW_EXP64_ROUND));
  const auto n = Wide::sub(shifted, Wide::all(TW_EXP64_ROUND));
  const auto r = Wide::sub(Wide::sub(x, Wide::mul(n, Wide::all(TW_EXP64_LN2_HIGH))),
                           Wide::mul(n, Wide::all(TW_EXP64_LN2_LOW)));
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
  auto p = Wide::all(1.0 / 6227020800.0);
  TW_UNROLL
  for (int i = 0; i < 13; ++i) p = Wide::add(Wide::mul(p, r), Wide::all(taylor[i]));
  return Wide::zero_below_700(Wide::times_power(p, shifted), x);
}

template <typename Wide>
double sum_exp(const float* x, int64_t count, double max) {
  constexpr int kRegisters = 8 / Wide::kLanes;
  typename Wide::Vector sums[kRegisters];
  for (int r = 0; r < kRegisters; ++r) sums[r] = Wide::all(0);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    TW_UNROLL
    for (int r = 0; r < kRegisters; ++r) {
      const auto v = Wide::sub(Wide::widen(x + i + r * Wide::kLanes), Wide::all(max));
      sums[r] = Wide::add(sums[r], exp_lanes<Wide>(v));
    }
  }
  double lanes[8];
  for (int r = 0; r < kRegisters; ++r) Wide::store(lanes + r * Wide::kLanes, sums[r]);
  return tw_finish_sum(lanes, x + i, count - i, max);
}

// Eight at a time, so that their exponentials hide the additions, each of which waits for the one before.
template <typename Wide>
double exp_all(const float* x, int64_t count, double max, double* out) {
  double total = 0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    TW_UNROLL
    for (int j = 0; j < 8; j += Wide::kLanes)
      Wide::store(out + i + j, exp_lanes<Wide>(Wide::sub(Wide::widen(x + i + j), Wide::all(max))));
    TW_UNROLL
    for (int j = 0; j < 8; ++j) total += out[i + j];
  }
  for (; i < count; ++i) total += out[i] = exp_negative((double)x[i] - max);
  return total;
}

template <typename Row, typename Wide>
const tw_logits_loops* logits_loops() {
  static const tw_logits_loops loops = {maxima<Row>,      weigh<Row>,    weights_above<Row>,
                                        collect<Row>,     exp_all<Wide>, sum_exp<Wide>,
                                        tw_count_greater, tw_divide,     tw_mask};
  return &loops;
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_X86_H_
