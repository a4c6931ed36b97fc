// The packed layout of quantized weights: panels of 16 rows, K cut into groups of `group` elements that share
// a scale. The last group is padded with zeros.
//
// Grouped (group 32, 64 or 128; TW_I8 or TW_I4): groups come in pairs,
//   [64 bytes: bf16 scales of 16 rows of the first group, then of the second][first group][second group];
//   an odd last group stands alone after its 64 bytes, of which the second half is zero.
// Whole rows (group 0; TW_I8 only): [64 bytes: fp32 scales of 16 rows][one group of K padded to 4].
//
// Inside a group, TW_I8: element k of row r is byte k / 4 * 64 + r * 4 + k % 4, in [-127, 127].
// TW_I4: element k of row r, plus 8, is a nibble of byte k / 8 * 64 + r * 4 + k % 4: the low one if k % 8
// < 4.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_

#include "plugins/common/kernel_types.h"

enum { TW_SCALE_BYTES = 64 };  // bytes of the scales of a pair of groups, or of whole rows

// The most columns of a matrix of whole rows. x is in [-127, 127] and a stored w in [-128, 127]; the sum of
// their products must fit an int32, and so must tw_sum_factor times the sum of x. (Groups have 128 columns at
// most.)
enum { TW_MAX_WHOLE_ROW = INT32_MAX / (127 * 128) };

// Returns the number of groups of a row; 1 for whole rows.
static inline int64_t tw_quantized_groups(int64_t k, int64_t group) {
  return group == 0 ? 1 : (k + group - 1) / group;
}

// Returns the number of stored elements of a group.
static inline int64_t tw_quantized_group(int64_t k, int64_t group) {
  return group == 0 ? (k + 3) / 4 * 4 : group;
}

// Returns the number of elements of a row of activations, with every group at full length.
static inline int64_t tw_quantized_row(int64_t k, int64_t group) {
  return tw_quantized_groups(k, group) * tw_quantized_group(k, group);
}

// Returns the bytes of one group of a panel, without the scales.
static inline int64_t tw_quantized_group_bytes(int dtype, int64_t k, int64_t group) {
  return tw_quantized_group(k, group) * TW_LANES / (dtype == TW_I4 ? 2 : 1);
}

// Returns the bytes of one panel.
static inline int64_t tw_quantized_panel_bytes(int dtype, int64_t k, int64_t group) {
  const int64_t groups = tw_quantized_groups(k, group);
  return (groups + 1) / 2 * TW_SCALE_BYTES + groups * tw_quantized_group_bytes(dtype, k, group);
}

// Returns the factor by which the sum of x is multiplied to correct a sum of products. Dot product
// instructions take unsigned weights, so 8 is added to each weight, or 128 for TW_I8, which makes the sum too
// large by 8 or 128 times the sum of x.
static inline int32_t tw_sum_factor(int dtype) { return dtype == TW_I4 ? -8 : -128; }

// The next two functions return the offset in a panel of the first element of group i, and of the group's 16
// scales.
static inline int64_t tw_quantized_group_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  return (i / 2 + 1) * TW_SCALE_BYTES + i * tw_quantized_group_bytes(dtype, k, group);
}
static inline int64_t tw_quantized_scale_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  return i / 2 * (TW_SCALE_BYTES + 2 * tw_quantized_group_bytes(dtype, k, group)) + i % 2 * 32;
}

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_
