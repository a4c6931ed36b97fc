// Loops over one row of logits, which sampling uses. There are two kinds:
//
// The loops of the definition say what a token and a logprob are, in double, in a fixed order, without FMA:
//   w(x) = exp(x - max), exactly 0 from 700 below on
// The other loops estimate sums of these weights, several times faster, within a bound that
// runtime/core/rows/row_estimate.cc derives. A token is taken from estimates only where the definition must
// give the same token. The order of the estimates is fixed too, so every instruction set gives the same bits.
#ifndef TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_
#define TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_

#include "plugins/common/kernel_types.h"

// TW_ROW_BLOCK: the number of values whose estimates are summed together.
enum { TW_ROW_BLOCK = 1024, TW_ROW_GROUP = 64, TW_ROW_BOUNDS = 8 };

// What weigh() returns for one block: the largest value, and the sum of exp(x / divisor) / 2^power.
typedef struct tw_row_block {
  float max;
  float power;
  double sum;
  int64_t rough;  // whether each weight in the sum is exact only within 2^-4
} tw_row_block;

static inline int64_t tw_row_blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

typedef struct tw_logits_loops {
  // Whether the estimates are quicker than the definition; without FMA they are not.
  int32_t quick;
  // Writes the largest value of each block of `block` values (a multiple of 64), or -inf. Returns whether
  // there is a NaN; the maxima mean nothing then.
  int32_t (*maxima)(const float* x, int64_t count, int64_t block, float* maxima);
  // Does the same for blocks of TW_ROW_BLOCK values, and estimates the sums in float. A block's power is that
  // of the largest value up to the end of the block; a block far below that value is estimated roughly.
  // Exponents below -125 are taken as -125.
  int32_t (*weigh)(const float* x, int64_t count, float divisor, tw_row_block* blocks);
  // For each of 1 or TW_ROW_BOUNDS bounds, adds to the bound's sum the sum of 2^((x / divisor) * log2 e -
  // shift) over the values above the bound, estimated in double. Exponents below -1000 are taken as -1000.
  // count: at most TW_ROW_BLOCK.
  void (*weights_above)(const float* x, int64_t count, float divisor, double shift, int32_t bounds_count,
                        const float* bounds, double* sums);
  // Writes the values in [low, high] and their places, counted from `first`, in order; returns their number.
  // There must be room for 16 more values.
  int64_t (*collect)(const float* x, int64_t count, float low, float high, int32_t first, float* values,
                     int32_t* ids);

  // The remaining loops are the definition. exp_all: out[i] = w(x[i]); returns their sum, taken in order.
  double (*exp_all)(const float* x, int64_t count, double max, double* out);
  // Returns the sum of w(x[i]), taken in eight lanes by index and then as a tree.
  double (*sum_exp)(const float* x, int64_t count, double max);
  int32_t (*count_greater)(const float* x, int64_t count, float value);
  void (*divide)(const float* x, int64_t count, float divisor, float* out);
  // out[i] = x[i] where bit i % 32 of words[i / 32] is set, else -inf; out is not x.
  void (*mask)(const float* x, int64_t count, const uint32_t* words, float* out);
} tw_logits_loops;

typedef const tw_logits_loops* (*tw_logits_fn)(void);

#endif  // TENSORWRIGHT_PLUGINS_LOGITS_KERNEL_H_
