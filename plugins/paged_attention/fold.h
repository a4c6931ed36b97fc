// Adds the splits of a row in ascending order, and the sink after the last split. The combine kernels of
// every instruction set share it.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_

#include "plugins/common/exp.h"

namespace {  // each including file gets its own copy, compiled with its own flags

struct Fold {
  float max = -INFINITY, sum = 0;

  // Returns whether a row sees nothing of a split. Scores that are all NaN may also leave no maximum, but
  // they leave a sum.
  static bool nothing(float max, float sum) { return max == -INFINITY && sum == 0; }

  // Adds a split, and sets the factors of the sums so far (mine) and of the new split's (other). Returns
  // false for the first split of which the row sees something: its sums are taken as they are.
  bool join(float split_max, float split_sum, float* mine, float* other) {
    if (nothing(max, sum)) {
      max = split_max, sum = split_sum;
      return false;
    }
    const float higher = max > split_max ? max : split_max;
    *mine = tw_exp(max - higher), *other = tw_exp(split_max - higher);
    sum = fmaf(split_sum, *other, sum * *mine);
    max = higher;
    return true;
  }

  // Adds a score without a value. Returns the factor of the sums so far.
  float sink(float score) {
    float mine, other;
    return join(score, 1.0f, &mine, &other) ? mine : 1.0f;
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_
