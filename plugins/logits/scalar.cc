// The loops over a row, the reference in plain C.
#include "plugins/logits/definition.h"
#include "plugins/logits/weight.h"

static float largest(const float* x, int64_t count, int32_t* nan) {
  float max = -INFINITY;
  for (int64_t i = 0; i < count; ++i) {
    *nan |= x[i] != x[i];
    max = x[i] > max ? x[i] : max;
  }
  return max;
}

static int32_t maxima(const float* x, int64_t count, int64_t block, float* out) {
  int32_t nan = 0;
  for (int64_t i = 0; i < count; i += block)
    *out++ = largest(x + i, count - i < block ? count - i : block, &nan);
  return nan;
}

// Lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
static double tree_sum(double* lanes) {
  for (int width = TW_LANES / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

// Adds four values of a lane as floats, and these sums in double; adds the lanes at the end, as a tree.
static double weight_sum(const float* x, int64_t count, float divisor, float scale,
                         const tw_row_block* block) {
  double lanes[TW_LANES] = {0};
  for (int64_t i = 0; i < count; i += TW_ROW_GROUP) {
    for (int64_t lane = 0; lane < TW_LANES; ++lane) {
      float w[4];
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t at = i + j * TW_LANES + lane;
        const float v = at < count ? x[at] : -INFINITY;
        w[j] = block->rough ? tw_rough_weight(v, scale, block->power) : tw_weight(v / divisor, block->power);
      }
      lanes[lane] += (double)((w[0] + w[1]) + (w[2] + w[3]));
    }
  }
  return tree_sum(lanes);
}

static int32_t weigh(const float* x, int64_t count, float divisor, tw_row_block* blocks) {
  const float scale = TW_LOG2E_HIGH / divisor;
  int32_t nan = 0;
  float max = -INFINITY;
  for (int64_t i = 0; i < count; i += TW_ROW_BLOCK, ++blocks) {
    const int64_t part = count - i < (int64_t)TW_ROW_BLOCK ? count - i : (int64_t)TW_ROW_BLOCK;
    blocks->max = largest(x + i, part, &nan);
    max = blocks->max > max ? blocks->max : max;
    blocks->power = tw_weight_power(max / divisor);
    blocks->rough = (max - blocks->max) * scale > TW_ROUGH_FROM;
    blocks->sum = max == -INFINITY ? 0 : weight_sum(x + i, part, divisor, scale, blocks);
  }
  return nan;
}

static void weights_above(const float* x, int64_t count, float divisor, double shift, int32_t bounds_count,
                          const float* bounds, double* sums) {
  double lanes[TW_ROW_BOUNDS][TW_LANES] = {{0}};
  for (int64_t i = 0; i < count; ++i) {
    const double w = tw_wide_weight(fma((double)(x[i] / divisor), TW_WIDE_LOG2E, -shift));
    for (int b = 0; b < bounds_count; ++b) lanes[b][i % TW_LANES] += x[i] > bounds[b] ? w : 0.0;
  }
  for (int b = 0; b < bounds_count; ++b) sums[b] += tree_sum(lanes[b]);
}

static int64_t collect(const float* x, int64_t count, float low, float high, int32_t first, float* values,
                       int32_t* ids) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!(x[i] >= low && x[i] <= high)) continue;
    values[found] = x[i];
    ids[found++] = first + (int32_t)i;
  }
  return found;
}

// Takes eight values at a time, so that their exponentials hide the additions, each of which waits for the
// one before.
static double exp_all(const float* x, int64_t count, double max, double* out) {
  double total = 0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) out[i + j] = exp_negative((double)x[i + j] - max);
    for (int j = 0; j < 8; ++j) total += out[i + j];
  }
  for (; i < count; ++i) total += out[i] = exp_negative((double)x[i] - max);
  return total;
}

static double sum_exp(const float* x, int64_t count, double max) {
  double lanes[8] = {0};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += exp_negative((double)x[i + j] - max);
  }
  return tw_finish_sum(lanes, x + i, count - i, max);
}

extern "C" const tw_logits_loops* tw_logits_scalar(void) {
  static const tw_logits_loops loops = {0,       maxima,           weigh,     weights_above, collect, exp_all,
                                        sum_exp, tw_count_greater, tw_divide, tw_mask};
  return &loops;
}
