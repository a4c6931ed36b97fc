// quantized_matmul and quantize_rows, the reference in plain C. Every other entry gives the same bits.
#include <math.h>
#include <string.h>

#include "plugins/common/exp.h"
#include "plugins/matmul/scalar_finish.h"
#include "plugins/quantized_matmul/decode.h"
#include "plugins/quantized_matmul/kernel.h"

namespace {

// Computes the sums of a row and the 16 lanes of a panel.
void panel_dot(const tw_quantized_matmul_args* a, int dtype, int64_t row, int64_t panel,
               float acc[TW_LANES]) {
  const int64_t k = a->matmul.k, group = a->group, size = tw_quantized_group(k, group);
  const char* w = (const char*)a->matmul.w + panel * tw_quantized_panel_bytes(dtype, k, group);
  const int8_t* x = (const int8_t*)a->matmul.x + row * a->matmul.x_stride;
  for (int lane = 0; lane < TW_LANES; ++lane) acc[lane] = 0.0f;
  for (int64_t i = 0; i < tw_quantized_groups(k, group); ++i) {
    const char* values = w + tw_quantized_group_offset(dtype, k, group, i);
    const char* zeros = w + tw_quantized_zero_offset(dtype, k, group, i);
    const char* scales = w + tw_quantized_scale_offset(dtype, k, group, i);
    for (int64_t lane = 0; lane < TW_LANES; ++lane) {
      int32_t dot = 0;
      for (int64_t e = 0; e < size; ++e)
        dot += x[i * size + e] * tw_quantized_weight(dtype, values, zeros, e, lane);
      const float scale =
          a->x_scale[i * a->group_stride + row] * tw_quantized_scale(dtype, scales, group, lane);
      acc[lane] = group == 0 ? (float)dot * scale : fmaf((float)dot, scale, acc[lane]);
    }
  }
}

// The same for weights with steps, whose exact sums go over a whole row.
void panel_dot_of_steps(const tw_quantized_matmul_args* a, int dtype, int64_t row, int64_t panel,
                        float acc[TW_LANES]) {
  const int64_t k = a->matmul.k, group = a->group;
  const char* w = (const char*)a->matmul.w + panel * tw_quantized_panel_bytes(dtype, k, group);
  const int8_t* x = (const int8_t*)a->matmul.x + row * a->matmul.x_stride;
  for (int64_t lane = 0; lane < TW_LANES; ++lane) {
    int32_t dot = 0;
    for (int64_t i = 0; i < tw_quantized_groups(k, group); ++i) {
      const char* values = w + tw_quantized_group_offset(dtype, k, group, i);
      const char* steps = w + tw_quantized_scale_offset(dtype, k, group, i);
      const char* offsets = w + tw_quantized_zero_offset(dtype, k, group, i);
      for (int64_t e = 0; e < group; ++e)
        dot += x[i * group + e] * tw_stepped_weight(values, steps, offsets, e, lane);
    }
    acc[lane] = (float)dot * (a->x_scale[row] * ((const float*)w)[lane]);
  }
}

void matmul(const tw_quantized_matmul_args* a, int dtype) {
  if (tw_has_steps(dtype)) {
    for_outputs(&a->matmul, [=](int64_t row, int64_t panel, float* acc) {
      panel_dot_of_steps(a, dtype, row, panel, acc);
    });
    return;
  }
  for_outputs(&a->matmul,
              [=](int64_t row, int64_t panel, float* acc) { panel_dot(a, dtype, row, panel, acc); });
}

float element(const tw_quantize_rows_args* a, int64_t row, int64_t k) {
  const int64_t at = row * a->x_stride + k;
  return a->x_dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)a->x)[at]) : ((const float*)a->x)[at];
}

// Quantizes one group of one row: elements [begin, end) of x become `size` elements of q.
void quantize_group(const tw_quantize_rows_args* a, int64_t row, int64_t i, int64_t begin, int64_t end,
                    int64_t size) {
  uint32_t most = 0;  // bits of the largest magnitude, ordered as magnitudes are, NaN above infinity
  for (int64_t k = begin; k < end; ++k) {
    const float value = element(a, row, k);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7fffffffu;
    if (bits > most) most = bits;
  }
  float largest;
  memcpy(&largest, &most, sizeof largest);
  const bool finite = most < 0x7f800000u;
  // A magnitude so small that its reciprocal overflows counts as zero.
  const float inverse = finite && largest >= 0x1p-120f ? 127.0f / largest : 0.0f;
  int8_t* q = a->q + row * a->q_stride + begin;
  int32_t sum = 0;
  for (int64_t e = 0; e < size; ++e) {
    const bool there = begin + e < end && inverse > 0.0f;
    q[e] = there ? (int8_t)((element(a, row, begin + e) * inverse + TW_EXP_ROUND) - TW_EXP_ROUND) : (int8_t)0;
    sum += q[e];
  }
  a->scale[i * a->group_stride + row] = finite ? (inverse > 0.0f ? largest / 127.0f : 0.0f) : NAN;
  a->sum[i * a->group_stride + row] = a->factor * sum;
}

}  // namespace

#define TW_SCALAR(dtype, kind, name) \
  extern "C" void tw_quantized_matmul_##kind##_scalar(const tw_quantized_matmul_args* a) { matmul(a, dtype); }
TW_FOR_EACH_QUANTIZED(TW_SCALAR)
#undef TW_SCALAR

extern "C" void tw_quantize_rows_scalar(const tw_quantize_rows_args* a) {
  const int64_t size = a->size, groups = (a->k + size - 1) / size;
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t begin = i * size, end = begin + size < a->k ? begin + size : a->k;
      quantize_group(a, row, i, begin, end, size);
    }
  }
}
