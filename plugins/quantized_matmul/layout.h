// The packed layout of quantized weights: panels of 16 rows, K cut into groups of `group` elements that share
// a scale. The last group is padded with zeros.
//
// Grouped (group 32, 64 or 128): `period` groups follow a header of their scales,
//   [header][first group]..[last group of the period];
//   a last period may have fewer groups, and the rest of its header is zero. A header has 64
//   bytes: the scales of 16 rows of the first group, then of the second, and so on. Scales are bf16 or
//   fp16, so that 2 groups share a header; those of TW_MXFP4 are bytes, so that 4 do. Weights with zero
//   points (TW_U8 and TW_U4) have headers of 192 bytes for 4 groups: the scales, then in the same order the
//   zero points, a byte each.
// Two levels (TW_W4A8): [64 bytes: fp32 scales of 16 rows], then 2 groups follow each header of 64 bytes, the
// steps of 16 rows of the first group and of the second, then in the same order the offsets, a byte each.
// Scales of TW_FP8 are fp32, so that every group has a header of its own.
// Whole rows (group 0; TW_I8 and TW_FP8): [64 bytes: fp32 scales of 16 rows][one group of K padded to 4].
//
// Inside a group, bytes: element k of row r is byte k / 4 * 64 + r * 4 + k % 4, in [-127, 127]. Those of
// TW_FP8 are floats of E4M3: a sign, 4 bits of exponent with the bias 7 and 3 of mantissa, no infinities. No
// product rounds activations beside them.
// 4 bits: element k of row r, plus 8, is a nibble of byte k / 8 * 64 + r * 4 + k % 4: the low one if k % 8
// < 4. The nibbles of TW_MXFP4 are codes of E2M1 and not numbers with 8 added.
// 2 bits: element k of row r, plus 2, is bits k / 4 % 4 * 2 and above of byte k / 16 * 64 + r * 4 + k % 4.
// 3 bits: 32 elements, each plus 4, take 192 bytes. The first 128 are the lower 2 bits, laid out as above. Of
// the last 64, bit k / 4 of byte r * 4 + k % 4 is the upper bit of element k of row r.
//
// A weight with a zero point is scale * (q - zero). TW_U4, TW_U3 and TW_U2 store q and zero as they are, from
// 0 on; TW_U8 stores both less 128, in [-128, 127].
//
// TW_W4A8 has codes in nibbles. A weight is scale * (offset + step * code) with the scale of the row and the
// step and the offset of the group. Steps are from 1 to TW_MOST_STEP. Offsets are stored plus 128, so that
// offset + step * code is the whole number plus 128 that the scale multiplies. It must be in [0, 255] for
// every code.
//
// 2:4 sparse (TW_I8_SPARSE and TW_I4_SPARSE): of each 4 neighbours along K two are kept. A group is a run of
// blocks of 32 columns, each of them
//   [64 bytes: the places of the kept elements][the kept elements].
// Kept elements 2 q and 2 q + 1 of a row are of columns 4 q to 4 q + 3, and a place is which of these four,
// from 0 to 3; that of the second element is larger. The 16 kept elements lie as 16 columns of a dense matrix
// would, and their places as the codes of 16 columns of 2 bits. Kernels take any two places: two elements of
// one place are added.
//
// E2M1: bit 3 of a code is the sign. The other three number the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
// Twice a magnitude is a whole number, so kernels compute with doubled weights and halved scales: a byte e is
// the scale 2^(e - 127) of doubled weights, 0 is the scale 0, and 255 does not occur. The exponent of a group
// in E8M0, as the OCP Microscaling Formats specification stores it, is larger by 1.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_

#include "plugins/common/kernel_types.h"

// The most columns of a matrix of whole rows. x is in [-127, 127] and a stored w in [-128, 127]; the sum of
// their products must fit an int32, and so must tw_sum_factor times the sum of x. (Groups have 128 columns at
// most.)
enum { TW_MAX_WHOLE_ROW = INT32_MAX / (127 * 128) };

// The largest step of TW_W4A8. Every kernel reads larger ones, which do not occur, as this one.
enum { TW_MOST_STEP = 16 };

// The dtypes that only quantized weights have besides TW_I8, in the order of tw_dtype.
enum tw_quantized_dtype {
  TW_MXFP4 = TW_I4 + 1,
  TW_U8,
  TW_U4,
  TW_I8_F16,  // from here on scales are fp16
  TW_I4_F16,
  TW_U8_F16,
  TW_U4_F16,
  TW_I3,
  TW_I2,
  TW_U3,
  TW_U2,
  TW_I3_F16,
  TW_I2_F16,
  TW_U3_F16,
  TW_U2_F16,
  TW_FP8,  // scales are fp32
  TW_W4A8,
  TW_I8_SPARSE,
  TW_I4_SPARSE
};

// The columns of a block of 2:4 sparse weights, and the bytes of the places of their kept elements.
enum { TW_SPARSE_BLOCK = 32, TW_SPARSE_PLACES = 64 };

// Calls of(dtype, kind, name) for every dtype of quantized weights but TW_FP8, which no kernel of
// quantized_matmul multiplies: the tables of kernels follow this list. Those of the first part have a kernel
// for AMX, and all but the sparse ones have one for NEON's products of matrices.
// kind: as in the names of kernels; name: that of the format, without the group.
// clang-format off: one dtype per line
#define TW_FOR_EACH_IN_TILES(of)      \
  of(TW_I8, i8, "int8")               \
  of(TW_I4, i4, "int4")               \
  of(TW_U8, u8, "uint8")              \
  of(TW_U4, u4, "uint4")              \
  of(TW_I8_F16, i8_f16, "int8:fp16")  \
  of(TW_I4_F16, i4_f16, "int4:fp16")  \
  of(TW_U8_F16, u8_f16, "uint8:fp16") \
  of(TW_U4_F16, u4_f16, "uint4:fp16") \
  of(TW_I3, i3, "int3")               \
  of(TW_I2, i2, "int2")               \
  of(TW_U3, u3, "uint3")              \
  of(TW_U2, u2, "uint2")              \
  of(TW_I3_F16, i3_f16, "int3:fp16")  \
  of(TW_I2_F16, i2_f16, "int2:fp16")  \
  of(TW_U3_F16, u3_f16, "uint3:fp16") \
  of(TW_U2_F16, u2_f16, "uint2:fp16") \
  of(TW_W4A8, w4a8, "w4a8")
#define TW_FOR_EACH_IN_REGISTERS(of) of(TW_MXFP4, mxfp4, "mxfp4")
#define TW_FOR_EACH_SPARSE(of)            \
  of(TW_I8_SPARSE, i8_sparse, "int8:2:4") \
  of(TW_I4_SPARSE, i4_sparse, "int4:2:4")
#define TW_FOR_EACH_DENSE(of) TW_FOR_EACH_IN_TILES(of) TW_FOR_EACH_IN_REGISTERS(of)
#define TW_FOR_EACH_QUANTIZED(of) TW_FOR_EACH_DENSE(of) TW_FOR_EACH_SPARSE(of)
// clang-format on

// How a group holds its weights, and its scales. TW_CODES: whole numbers of fewer bits than 8, from 0 on.
enum tw_values { TW_BYTES, TW_CODES, TW_E2M1, TW_E4M3 };
enum tw_scales { TW_SCALES_BF16, TW_SCALES_F16, TW_SCALES_E8M0, TW_SCALES_F32, TW_SCALES_STEPS };

// How the weights of one dtype are stored. Every kernel derives from these fields what it does.
typedef struct tw_weight_codec {
  int dtype;
  int bits;         // of a weight
  int values;       // a tw_values
  int scales;       // a tw_scales, of groups; the scales of whole rows are fp32
  int scale_bytes;  // of the scale of one row and group
  int period;       // groups after one header
  int header;       // bytes of the header
  int zeros;        // where in the header the zero points (or offsets) begin; 0 if the weights have none
  // Dot product instructions take unsigned weights, so 8, 4 or 2 is added to weights of 4, 3 or 2 bits, 128
  // to each byte and 12 to twice an E2M1 number. The sum of x times this factor takes away what that adds to
  // a sum of products. Where there are zero points, it is multiplied by them as well.
  int factor;
  bool sparse;  // 2:4
} tw_weight_codec;

// Returns `codec` as that of `dtype`, whose weights are the same and whose scales are fp16.
static constexpr tw_weight_codec tw_with_f16(int dtype, tw_weight_codec codec) {
  codec.dtype = dtype;
  codec.scales = TW_SCALES_F16;
  return codec;
}

// Returns `codec` as that of `dtype`, whose weights are the same and 2:4 sparse.
static constexpr tw_weight_codec tw_with_sparse(int dtype, tw_weight_codec codec) {
  codec.dtype = dtype;
  codec.sparse = true;
  return codec;
}

// Returns the codec of a dtype of quantized weights. `dtype` is 0 in the codec of any other dtype, which no
// weight has.
static constexpr tw_weight_codec tw_codec(int dtype) {
  switch (dtype) {
    case TW_I8:
      return {TW_I8, 8, TW_BYTES, TW_SCALES_BF16, 2, 2, 64, 0, -128, false};
    case TW_I4:
      return {TW_I4, 4, TW_CODES, TW_SCALES_BF16, 2, 2, 64, 0, -8, false};
    case TW_MXFP4:
      return {TW_MXFP4, 4, TW_E2M1, TW_SCALES_E8M0, 1, 4, 64, 0, -12, false};
    case TW_U8:
      return {TW_U8, 8, TW_BYTES, TW_SCALES_BF16, 2, 4, 192, 128, -1, false};
    case TW_U4:
      return {TW_U4, 4, TW_CODES, TW_SCALES_BF16, 2, 4, 192, 128, -1, false};
    case TW_I8_F16:
      return tw_with_f16(TW_I8_F16, tw_codec(TW_I8));
    case TW_I4_F16:
      return tw_with_f16(TW_I4_F16, tw_codec(TW_I4));
    case TW_U8_F16:
      return tw_with_f16(TW_U8_F16, tw_codec(TW_U8));
    case TW_U4_F16:
      return tw_with_f16(TW_U4_F16, tw_codec(TW_U4));
    case TW_I3:
      return {TW_I3, 3, TW_CODES, TW_SCALES_BF16, 2, 2, 64, 0, -4, false};
    case TW_I2:
      return {TW_I2, 2, TW_CODES, TW_SCALES_BF16, 2, 2, 64, 0, -2, false};
    case TW_U3:
      return {TW_U3, 3, TW_CODES, TW_SCALES_BF16, 2, 4, 192, 128, -1, false};
    case TW_U2:
      return {TW_U2, 2, TW_CODES, TW_SCALES_BF16, 2, 4, 192, 128, -1, false};
    case TW_I3_F16:
      return tw_with_f16(TW_I3_F16, tw_codec(TW_I3));
    case TW_I2_F16:
      return tw_with_f16(TW_I2_F16, tw_codec(TW_I2));
    case TW_U3_F16:
      return tw_with_f16(TW_U3_F16, tw_codec(TW_U3));
    case TW_U2_F16:
      return tw_with_f16(TW_U2_F16, tw_codec(TW_U2));
    case TW_FP8:
      return {TW_FP8, 8, TW_E4M3, TW_SCALES_F32, 4, 1, 64, 0, 0, false};
    case TW_W4A8:
      return {TW_W4A8, 4, TW_CODES, TW_SCALES_STEPS, 1, 2, 64, 32, -128, false};
    case TW_I8_SPARSE:
      return tw_with_sparse(TW_I8_SPARSE, tw_codec(TW_I8));
    case TW_I4_SPARSE:
      return tw_with_sparse(TW_I4_SPARSE, tw_codec(TW_I4));
    default:
      return {};
  }
}

// Returns whether groups have steps, which are whole numbers, under one scale for each row.
static constexpr bool tw_has_steps(int dtype) { return tw_codec(dtype).scales == TW_SCALES_STEPS; }

// Returns whether a product is an exact sum over a whole row, and a token has one scale.
static constexpr bool tw_sums_whole_rows(int dtype, int64_t group) {
  return group == 0 || tw_has_steps(dtype);
}

// Returns the bytes in front of the first header of groups.
static constexpr int64_t tw_quantized_front(int dtype) {
  return tw_has_steps(dtype) ? (int64_t)(TW_LANES * sizeof(float)) : 0;
}

// Returns the lines of 64 bytes of the shortest run of elements that ends with a line, and its steps of 4
// elements.
static constexpr int tw_block_lines(int dtype) { return tw_codec(dtype).bits == 3 ? 3 : 1; }
static constexpr int tw_block_steps(int dtype) { return tw_block_lines(dtype) * 8 / tw_codec(dtype).bits; }

// Returns whether weights of that dtype can share a scale in groups of that size; 0: in whole rows.
static constexpr bool tw_quantizes(int dtype, int64_t group) {
  if (tw_codec(dtype).dtype == 0) return false;
  if (dtype == TW_MXFP4) return group == 32;
  return group == 32 || group == 64 || group == 128 || (group == 0 && (dtype == TW_I8 || dtype == TW_FP8));
}

// Returns whether products with weights of that dtype may round activations to whole numbers.
static constexpr bool tw_multiplies_integers(int dtype) {
  return tw_codec(dtype).dtype != 0 && tw_codec(dtype).values != TW_E4M3;
}

// Returns whether products with weights of that dtype may take activations as they are.
static constexpr bool tw_multiplies_floats(int dtype) {
  return tw_codec(dtype).dtype != 0 && !tw_codec(dtype).sparse && !tw_has_steps(dtype);
}

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

// Returns the number of scales of a row of activations, and how many of its elements share one.
static inline int64_t tw_activation_groups(int dtype, int64_t k, int64_t group) {
  return tw_sums_whole_rows(dtype, group) ? 1 : tw_quantized_groups(k, group);
}
static inline int64_t tw_activation_group(int dtype, int64_t k, int64_t group) {
  return tw_sums_whole_rows(dtype, group) ? tw_quantized_row(k, group) : group;
}

// Returns the bytes of a block of 2:4 sparse weights in a panel.
static constexpr int64_t tw_sparse_block_bytes(int dtype) {
  return TW_SPARSE_PLACES + TW_SPARSE_BLOCK / 2 * TW_LANES * tw_codec(dtype).bits / 8;
}

// Returns the bytes of one group of a panel, without the scales.
static inline int64_t tw_quantized_group_bytes(int dtype, int64_t k, int64_t group) {
  const tw_weight_codec c = tw_codec(dtype);
  if (c.sparse) return group / TW_SPARSE_BLOCK * tw_sparse_block_bytes(dtype);
  return tw_quantized_group(k, group) * TW_LANES * c.bits / 8;
}

// Returns the bytes of one panel.
static inline int64_t tw_quantized_panel_bytes(int dtype, int64_t k, int64_t group) {
  const tw_weight_codec c = tw_codec(dtype);
  const int64_t groups = tw_quantized_groups(k, group);
  return tw_quantized_front(dtype) + (groups + c.period - 1) / c.period * c.header +
         groups * tw_quantized_group_bytes(dtype, k, group);
}

// Returns the factor by which the sum of x is multiplied to correct a sum of products of unsigned weights.
static inline int32_t tw_sum_factor(int dtype) { return tw_codec(dtype).factor; }

// The next functions return the offset in a panel of the header of group i, of the group's first element, and
// of its 16 scales (or steps) and zero points (or offsets).
static inline int64_t tw_quantized_header_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  const tw_weight_codec c = tw_codec(dtype);
  return tw_quantized_front(dtype) +
         i / c.period * (c.header + c.period * tw_quantized_group_bytes(dtype, k, group));
}
static inline int64_t tw_quantized_group_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  const tw_weight_codec c = tw_codec(dtype);
  return tw_quantized_front(dtype) + (i / c.period + 1) * c.header +
         i * tw_quantized_group_bytes(dtype, k, group);
}
static inline int64_t tw_quantized_scale_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  const tw_weight_codec c = tw_codec(dtype);
  return tw_quantized_header_offset(dtype, k, group, i) + i % c.period * TW_LANES * c.scale_bytes;
}
static inline int64_t tw_quantized_zero_offset(int dtype, int64_t k, int64_t group, int64_t i) {
  const tw_weight_codec c = tw_codec(dtype);
  return tw_quantized_header_offset(dtype, k, group, i) + c.zeros + i % c.period * TW_LANES;
}

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_LAYOUT_H_
