// The numbers of one token and head that all kernels of delta_rule compute alike.
#ifndef TENSORWRIGHT_PLUGINS_DELTA_RULE_STEP_H_
#define TENSORWRIGHT_PLUGINS_DELTA_RULE_STEP_H_

#include "plugins/common/softplus.h"
#include "plugins/common/tanh.h"
#include "plugins/delta_rule/kernel.h"

// Returns what is left of the state at token t, or of its row `key` where each has a decay of its own.
static inline float tw_delta_decay(const tw_delta_rule_args* a, int64_t t, int64_t key) {
  return tw_exp(a->a * tw_softplus(a->dt[t * a->dt_stride + key]));
}

// Returns how much of the error token t takes back.
static inline float tw_delta_rate(const tw_delta_rule_args* a, int64_t t) {
  return a->beta_scale * tw_sigmoid(a->beta[t * a->beta_stride]);
}

// Returns the factor that makes a vector of this sum of squares one of length 1.
static inline float tw_delta_inverse(float squares) { return 1.0f / sqrtf(squares + TW_DELTA_EPSILON); }

#endif  // TENSORWRIGHT_PLUGINS_DELTA_RULE_STEP_H_
