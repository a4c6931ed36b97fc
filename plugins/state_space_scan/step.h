// The numbers of one token and head that all kernels of state_space_scan compute alike.
#ifndef TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_STEP_H_
#define TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_STEP_H_

#include "plugins/common/softplus.h"
#include "plugins/state_space_scan/kernel.h"

// Returns the step of token t: how far it moves the state.
static inline float tw_scan_step(const tw_state_space_scan_args* a, int64_t t) {
  float step = tw_softplus(a->dt[t * a->dt_stride] + a->dt_bias);
  // A NaN passes both comparisons.
  if (step < a->dt_min) step = a->dt_min;
  if (step > a->dt_max) step = a->dt_max;
  return step;
}

#endif  // TENSORWRIGHT_PLUGINS_STATE_SPACE_SCAN_STEP_H_
