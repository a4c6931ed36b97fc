// state_space_scan for an instruction set `Set` (Avx2, Avx512 or Neon). A lane is a column of the state.
#ifndef TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_VECTOR_H_

#include "plugins/common/vector.h"
#include "plugins/state_space_scan/kernel.h"
#include "plugins/state_space_scan/step.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Tokens are taken in turns of kTurn. In a turn a few rows of the state at a time stay in registers over all
// its tokens, and each token's sum lies in memory. Every sum still adds up the rows in ascending order, and
// every number of the state takes the tokens in order, so bits do not depend on where a turn begins.
constexpr int kTurn = 32;
constexpr int kLine = TW_LANES;  // rows whose b and c are copied together: a cache line of each

// What one turn computes with: of kVectors registers of columns, and of kLine rows.
template <typename Set, int kVectors>
struct Turn {
  static constexpr int kColumns = kVectors * Set::kLanes;
  int64_t tokens;
  float step[kTurn], decay[kTurn];
  float b[kTurn * kLine], c[kTurn * kLine];
  float input[kTurn * kColumns], sum[kTurn * kColumns];
};

// Advances kRows rows of the state, of which `columns` columns are left, by all tokens of a turn. `row` is
// the place of the first one among the rows of the turn.
template <typename Set, int kVectors, int kRows>
TW_INLINE void advance(Turn<Set, kVectors>& turn, float* state, int64_t width, int64_t columns, int64_t row) {
  typename Set::Vector h[kRows][kVectors];
  TW_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      h[r][i] = Set::load(state + r * width + at, columns - at);
    }
  }
  for (int64_t t = 0; t < turn.tokens; ++t) {
    const auto decay = Set::all(turn.decay[t]);
    const float* b = turn.b + t * kLine + row;
    const float* c = turn.c + t * kLine + row;
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = t * turn.kColumns + Set::kLanes * i;
      const auto input = Set::load(turn.input + at, Set::kLanes);
      auto sum = Set::load(turn.sum + at, Set::kLanes);
      TW_UNROLL
      for (int r = 0; r < kRows; ++r) {
        h[r][i] = Set::fma(h[r][i], decay, Set::mul(input, Set::all(b[r])));
        sum = Set::fma(h[r][i], Set::all(c[r]), sum);
      }
      Set::store(turn.sum, TW_F32, at, Set::kLanes, sum);
    }
  }
  TW_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i;
      Set::store(state, TW_F32, r * width + at, columns - at, h[r][i]);
    }
  }
}

// Reads the inputs of a turn that begins at token `begin`, and sets its sums to zero.
template <typename Set, int kVectors>
TW_INLINE void begin_turn(Turn<Set, kVectors>& turn, const tw_state_space_scan_args* a, int64_t begin,
                          int64_t first) {
  turn.tokens = a->tokens - begin < kTurn ? a->tokens - begin : kTurn;
  for (int64_t t = 0; t < turn.tokens; ++t) {
    turn.step[t] = tw_scan_step(a, begin + t);
    turn.decay[t] = tw_exp(turn.step[t] * a->a);
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = Set::kLanes * i, to = t * turn.kColumns + at;
      const auto x = Set::load(a->x + (begin + t) * a->x_stride + first + at, a->width - first - at);
      Set::store(turn.input, TW_F32, to, Set::kLanes, Set::mul(Set::all(turn.step[t]), x));
      Set::store(turn.sum, TW_F32, to, Set::kLanes, Set::all(0.0f));
    }
  }
}

// Advances rows [n, n + count) of the state, count of at most kLine, by all tokens of a turn.
template <typename Set, int kVectors>
TW_INLINE void advance_line(Turn<Set, kVectors>& turn, const tw_state_space_scan_args* a, int64_t begin,
                            int64_t first, int64_t n, int64_t count) {
  constexpr int kRows = Set::kLanes / 4;  // as many as there are registers for
  for (int64_t t = 0; t < turn.tokens; ++t) {
    for (int64_t at = 0; at < kLine; at += Set::kLanes) {
      const int64_t from = (begin + t) * a->x_stride + n + at, to = t * kLine + at;
      Set::store(turn.b, TW_F32, to, Set::kLanes, Set::load(a->b + from, count - at));
      Set::store(turn.c, TW_F32, to, Set::kLanes, Set::load(a->c + from, count - at));
    }
  }
  float* state = a->state + n * a->width + first;
  int64_t row = 0;
  for (; row + kRows <= count; row += kRows) {
    advance<Set, kVectors, kRows>(turn, state + row * a->width, a->width, a->width - first, row);
  }
  for (; row < count; ++row) {
    advance<Set, kVectors, 1>(turn, state + row * a->width, a->width, a->width - first, row);
  }
}

// Scans kVectors registers of columns from `first` on. Columns past the width are zero and not written.
template <typename Set, int kVectors>
void scan_columns(const tw_state_space_scan_args* a, int64_t first) {
  for (int64_t n = 0; a->fresh && n < a->states; ++n) {
    TW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = first + Set::kLanes * i;
      Set::store(a->state, TW_F32, n * a->width + at, a->width - at, Set::all(0.0f));
    }
  }
  Turn<Set, kVectors> turn;
  for (int64_t begin = 0; begin < a->tokens; begin += kTurn) {
    begin_turn(turn, a, begin, first);
    for (int64_t n = 0; n < a->states; n += kLine) {
      advance_line(turn, a, begin, first, n, a->states - n < kLine ? a->states - n : kLine);
    }
    for (int64_t t = 0; t < turn.tokens; ++t) {
      TW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int64_t at = first + Set::kLanes * i;
        const auto x = Set::load(a->x + (begin + t) * a->x_stride + at, a->width - at);
        const auto sum = Set::load(turn.sum + t * turn.kColumns + Set::kLanes * i, Set::kLanes);
        const auto y = Set::fma(Set::all(a->d), x, sum);
        Set::store(a->y, a->y_dtype, a->y_begin + (begin + t) * a->y_stride + at, a->width - at, y);
      }
    }
  }
}

template <typename Set>
void state_space_scan(const tw_state_space_scan_args* a) {
  int64_t first = 0;
  for (; first + 2 * Set::kLanes < a->width; first += 4 * Set::kLanes) scan_columns<Set, 4>(a, first);
  for (; first < a->width; first += Set::kLanes) scan_columns<Set, 1>(a, first);
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_VECTOR_H_
