// Says how long a step takes, from the shape of the step alone. A simulation uses it in place of computing.
//
// The time of a step is a sum of five terms:
//   table(tokens)            between the measured sizes on the line between them, beyond the largest on the
//                            line through the last two
//   pair_seconds * pairs     pairs of a token and a position that it attends to
//   context_seconds * reads  positions whose keys and values the step reads, once for each sequence
//   row_seconds * rows       rows of logits, with the draws from them
//   sequence_seconds * seqs  sequences
// A layer with a window attends to the window alone, and counts with the share that its cache group has of
// the bytes of all groups.
//
// Steps of the same shape do not all take the same time. The sum is multiplied by one of the numbers of
// `spread`, which is drawn for each step; all of them are as likely, and their mean is 1.
#ifndef TENSORWRIGHT_RUNTIME_CORE_COST_MODEL_H_
#define TENSORWRIGHT_RUNTIME_CORE_COST_MODEL_H_

#include <cstdint>
#include <vector>

#include "runtime/core/interface/executor.h"

namespace tensorwright {

// What the time of a step depends on.
struct StepShape {
  int32_t tokens = 0, sequences = 0, rows = 0;
  double pairs = 0, reads = 0;
};

// The prices of a step, in seconds. All are 0 or more.
struct StepPrices {
  std::vector<int32_t> sizes = {};   // tokens, ascending, from 1 on
  std::vector<double> seconds = {};  // [sizes]: a step of so many tokens without the other terms
  double pair_seconds = 0, context_seconds = 0, row_seconds = 0, sequence_seconds = 0;
  std::vector<double> spread = {};  // empty: no step takes longer than another of its shape
};

// Counts what the time of a step depends on.
class ShapeCounter {
 public:
  explicit ShapeCounter(const ModelFacts& facts);

  StepShape shape_of(const Step& step) const;

 private:
  struct Group {
    int32_t window;  // with the sink tokens; 0: none
    double share;    // of the bytes of all groups
  };
  std::vector<Group> groups_;
  const int32_t sparse_prefill_;
};

class CostModel {
 public:
  // Throws Error{"InvalidOptionError"} for prices that are not sound, and for a step of one token that would
  // take less than a nanosecond: time would stand still.
  CostModel(const ModelFacts& facts, StepPrices prices);

  // drawn: in [0, 1); it chooses from the spread.
  double seconds(const Step& step, double drawn) const { return seconds(shapes_.shape_of(step), drawn); }
  double seconds(const StepShape& shape, double drawn) const;

 private:
  double table(int32_t tokens) const;

  const ShapeCounter shapes_;
  const StepPrices prices_;
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_COST_MODEL_H_
