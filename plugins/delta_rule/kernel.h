// delta_rule: the gated delta rule of one value head of one sequence over its tokens, as op.py defines it.
#ifndef TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNEL_H_

#include "plugins/common/kernel_types.h"

// The kernels keep a normalised q and k, and a decay for each element of a key, on their stack.
enum { TW_DELTA_MAX_KEYS = 1024 };
#define TW_DELTA_EPSILON 1e-6f

typedef struct tw_delta_rule_args {
  int32_t tokens;       // of the sequence, at least 1
  int32_t keys, width;  // the elements of a key (K) and of a value (P)
  int32_t decays;       // 1 for the whole state, or K: one for each element of a key
  int32_t fresh;        // whether the state before the first token is zero, whatever `state` holds
  int32_t y_dtype;      // TW_F32 or TW_BF16
  float a, beta_scale;
  const float* q;    // [tokens, K]
  const float* k;    // [tokens, K], at the stride of q
  const float* v;    // [tokens, P], at the stride of q
  int64_t q_stride;  // elements
  const float* dt;   // [tokens, decays]
  int64_t dt_stride;
  const float* beta;  // [tokens], before the sigmoid
  int64_t beta_stride;
  float* state;               // [K, P]
  void* y;                    // [tokens, P] from element y_begin on
  int64_t y_begin, y_stride;  // elements
} tw_delta_rule_args;

typedef void (*tw_delta_rule_fn)(const tw_delta_rule_args*);

#endif  // TENSORWRIGHT_PLUGINS_DELTA_RULE_KERNEL_H_
