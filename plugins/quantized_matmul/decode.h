// Reads single weights and scales of the panels of layout.h, in plain C.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_DECODE_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_DECODE_H_

#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/common/f16.h"
#include "plugins/quantized_matmul/layout.h"

// Returns code k of a row of a group, for weights of 4, 3 or 2 bits.
static inline int32_t tw_quantized_code(int bits, const void* group, int64_t k, int64_t lane) {
  const uint8_t* line = (const uint8_t*)group + lane * 4 + k % 4;
  switch (bits) {
    case 4:
      return line[k / 8 * 64] >> k / 4 % 2 * 4 & 15;
    case 2:
      return line[k / 16 * 64] >> k / 4 % 4 * 2 & 3;
    default:
      line += k / 32 * 192;
      return (line[k % 32 / 16 * 64] >> k / 4 % 4 * 2 & 3) | (line[128] >> k / 4 % 8 & 1) << 2;
  }
}

// Returns twice the E2M1 number of a code.
static inline int32_t tw_doubled_e2m1(int32_t code) {
  static const int8_t kMagnitudes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
}

// Returns the number of a code of E4M3. 0x7f and 0xff would be NaN and do not occur; every kernel reads them
// as the numbers that their bits would be, 480 and -480.
static inline float tw_e4m3_to_f32(uint8_t code) {
  const uint32_t size = code & 0x7fu;
  const float small = (float)size * 0x1p-9f;  // below the least normal number
  uint32_t bits;
  memcpy(&bits, &small, sizeof bits);
  if (size >= 8u) bits = (size << 20) + (120u << 23);
  bits |= (uint32_t)(code & 0x80u) << 24;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Returns element k of a row of a group of dense weights, as the whole number that its scale multiplies.
// zeros: the zero points of the group's 16 rows, which are read only if the dtype has them.
static inline int32_t tw_dense_weight(int dtype, const void* group, const void* zeros, int64_t k,
                                      int64_t lane) {
  const tw_weight_codec c = tw_codec(dtype);
  switch (c.values) {
    case TW_BYTES:
      return ((const int8_t*)group)[k / 4 * 64 + lane * 4 + k % 4] -
             (c.zeros ? ((const int8_t*)zeros)[lane] : 0);
    case TW_E2M1:
      return tw_doubled_e2m1(tw_quantized_code(4, group, k, lane));
    default:
      return tw_quantized_code(c.bits, group, k, lane) + (c.zeros ? -((const int8_t*)zeros)[lane] : c.factor);
  }
}

// Returns element k of a row of a group, as the whole number that its scale multiplies. zeros: as in
// tw_dense_weight.
static inline int32_t tw_quantized_weight(int dtype, const void* group, const void* zeros, int64_t k,
                                          int64_t lane) {
  if (!tw_codec(dtype).sparse) return tw_dense_weight(dtype, group, zeros, k, lane);
  const char* block = (const char*)group + k / TW_SPARSE_BLOCK * tw_sparse_block_bytes(dtype);
  const int64_t first = k % TW_SPARSE_BLOCK / 4 * 2;
  int32_t weight = 0;
  for (int64_t i = first; i < first + 2; ++i) {
    if (tw_quantized_code(2, block, i, lane) == k % 4)
      weight += tw_dense_weight(dtype, block + TW_SPARSE_PLACES, zeros, i, lane);
  }
  return weight;
}

// Returns element k of a row of a group of any dtype, as the number that its scale multiplies. bfloat16 can
// hold each of them.
static inline float tw_quantized_number(int dtype, const void* group, const void* zeros, int64_t k,
                                        int64_t lane) {
  if (tw_codec(dtype).values != TW_E4M3) return (float)tw_quantized_weight(dtype, group, zeros, k, lane);
  return tw_e4m3_to_f32(((const uint8_t*)group)[k / 4 * 64 + lane * 4 + k % 4]);
}

// Returns the element of weights with steps as the whole number that the scale of its row multiplies. steps,
// offsets: those of the group's 16 rows.
static inline int32_t tw_stepped_weight(const void* group, const void* steps, const void* offsets, int64_t k,
                                        int64_t lane) {
  const int32_t stored = ((const uint8_t*)steps)[lane], step = stored < TW_MOST_STEP ? stored : TW_MOST_STEP;
  const int32_t above = tw_quantized_code(4, group, k, lane) * step;
  return (int8_t)((uint8_t)(above + ((const uint8_t*)offsets)[lane]) ^ 0x80);
}

// Returns the scale of a row of a group. scales: those of the group's 16 rows. group: 0 for whole rows.
static inline float tw_quantized_scale(int dtype, const void* scales, int64_t group, int64_t lane) {
  if (group == 0 || tw_codec(dtype).scales == TW_SCALES_F32) return ((const float*)scales)[lane];
  if (tw_codec(dtype).scales == TW_SCALES_E8M0) {
    const uint32_t bits = (uint32_t)((const uint8_t*)scales)[lane] << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
  }
  const uint16_t half = ((const uint16_t*)scales)[lane];
  return tw_codec(dtype).scales == TW_SCALES_F16 ? tw_f16_to_f32(half) : tw_bf16_to_f32(half);
}

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_DECODE_H_
