// Loops over one row of logits: what sampling asks of it. Two kinds:
//
// The definition: what a token and a logprob are, in double, in a fixed order, without FMA.
//   w(x) = exp(x - max), exactly 0 from 700 below on
// Estimates of sums of those, several times faster, within a bound that runtime/core/rows/row_estimate.cc
// derives: a token is taken from them only where the definition must give the same one. Orders are fixed
// there too: every instruction set gives the same bits.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_

#include "plugins/common/kernel_types.h"

// Values of a row whose estimates are summed together.
enum { TW_ROW_BLOCK = 1024, TW_ROW_GROUP = 64, TW_ROW_BOUNDS = 8 };

// What weigh() finds of one block: its largest value, and the sum of exp(x / divisor) / 2^power.
typedef struct tw_row_block {
  float max;
  float power;
  double sum;
  int64_t rough;  // whether each weight in the sum is only within 2^-4 of what it stands for
} tw_row_block;

static inline int64_t tw_row_blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

typedef struct tw_logits_loops {
  // Whether the estimates are quicker than the definition: not without FMA.
  int32_t quick;
  // The largest of each block of `block` values (a multiple of 64), -inf if it has none. Whether there is a
  // NaN; then the maxima mean nothing.
  int32_t (*maxima)(const float* x, int64_t count, int64_t block, float* maxima);
  // The same by blocks of TW_ROW_BLOCK with estimates in float. A block's power is that of the largest value
  // up to its end; a block far below that is taken roughly. Exponents below -125 are taken as -125.
  int32_t (*weigh)(const float* x, int64_t count, float divisor, tw_row_block* blocks);
  // For each of 1 or TW_ROW_BOUNDS bounds: adds to its sum that of 2^((x / divisor) * log2 e -
  // shift) over the values above it, estimated in double. Exponents below -1000 are taken as that. At most
  // TW_ROW_BLOCK values.
  void (*weights_above)(const float* x, int64_t count, float divisor, double shift, int32_t bounds_count,
                        const float* bounds, double* sums);
  // Writes the values in [low, high] and their places, counted from `first`, in order; returns how many.
  // There must be room for 16 more than those.
  int64_t (*collect)(const float* x, int64_t count, float low, float high, int32_t first, float* values,
                     int32_t* ids);

  // The definition. out[i] = w(x[i]); returns their sum, taken in order.
  double (*exp_all)(const float* x, int64_t count, double max, double* out);
  // The sum of w(x[i]) in eight lanes by index, then a tree.
  double (*sum_exp)(const float* x, int64_t count, double max);
  int32_t (*count_greater)(const float* x, int64_t count, float value);
  void (*divide)(const float* x, int64_t count, float divisor, float* out);
  // out[i] = x[i] where bit i % 32 of words[i / 32] is set, else -inf; out is not x.
  void (*mask)(const float* x, int64_t count, const uint32_t* words, float* out);
} tw_logits_loops;

typedef const tw_logits_loops* (*tw_logits_fn)(void);

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_
