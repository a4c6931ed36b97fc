// What joins softmaxes, for an instruction set `Set` (Avx2, Avx512 or Neon): the splits of a row, and what
// was noted of its tiles.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_COMBINE_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_COMBINE_H_

#include "plugins/common/vector.h"
#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Folds a vector of columns of one row over the splits in ascending order. The first split of which the row
// sees something is taken as it is.
template <typename Set>
inline void fold_vector(const tw_attention_combine_args* a, int64_t row, int column) {
  const int64_t count = a->v_dim - column;
  Fold fold;
  auto acc = Set::all(0.0f);
  for (int64_t split = 0; split < a->splits; ++split) {
    const int64_t at = split * a->rows + row;
    if (Fold::nothing(a->max[at], a->sum[at])) continue;
    const auto value = Set::load(a->acc + at * a->v_dim + column, count);
    float mine, other;
    const bool joined = fold.join(a->max[at], a->sum[at], &mine, &other);
    acc = joined ? Set::fma(value, Set::all(other), Set::mul(acc, Set::all(mine))) : value;
  }
  if (a->sinks) acc = Set::mul(acc, Set::all(fold.sink(a->sinks[row])));
  Set::store(a->y, a->y_dtype, a->y_offsets[row] + column, count, Set::div(acc, Set::all(fold.sum)));
}

template <typename Set>
inline void fold_rows(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int column = 0; column < a->v_dim; column += Set::kLanes) fold_vector<Set>(a, row, column);
  }
}

// Joins what was noted of the tiles of a vector of rows, or of the rows that are left.
template <typename Set>
inline void join_vector(const tw_attention_shares_args* a, int row) {
  const int64_t count = a->rows - row, end = a->tiles * a->stride;
  auto top = Set::all(-INFINITY), total = Set::all(0.0f);
  for (int64_t at = row; at < end; at += a->stride) top = Set::max(top, Set::load(a->max + at, count));
  for (int64_t at = row; at < end; at += a->stride) {
    const auto weight = Set::exp(Set::sub(Set::load(a->max + at, count), top));
    const auto share = Set::mul(Set::load(a->sum + at, count), weight);
    Set::store(a->sum, TW_F32, at, count, share);
    total = Set::add(total, share);
  }
  Set::store(a->total, TW_F32, row, count, total);
}

template <typename Set>
inline void join_rows(const tw_attention_shares_args* a) {
  for (int row = 0; row < a->rows; row += Set::kLanes) join_vector<Set>(a, row);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VECTOR_COMBINE_H_
