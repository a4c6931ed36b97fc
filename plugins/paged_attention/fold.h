// How a row's splits add up, in ascending order, the sink after the last of them: what the combine kernels of
// every instruction set share.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_

#include "plugins/common/exp.h"

namespace {  // each including file gets its own copy, compiled with its own flags

struct Fold {
  float max = -INFINITY, sum = 0;

  // Whether a row sees nothing of a split. Scores that are all NaN may leave no maximum either, but a sum.
  static bool nothing(float max, float sum) { return max == -INFINITY && sum == 0; }

  // The factor of what there is (mine) and of what joins it (other). False for the first split that the row
  // sees something of: it is taken as it is.
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

  // Takes in a score without a value. The factor of what there is.
  float sink(float score) {
    float mine, other;
    return join(score, 1.0f, &mine, &other) ? mine : 1.0f;
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_FOLD_H_
