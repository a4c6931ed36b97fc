// quantized_matmul, quantize_rows and quantize_weights for NEON, with the same bits as scalar.cc.
#include "plugins/common/arm_neon.h"

#include "plugins/common/arm_pairs.h"
#include "plugins/quantized_matmul/arm_registers.h"
#include "plugins/quantized_matmul/vector_rows.h"
#include "plugins/quantized_matmul/vector_weights.h"

namespace {

// Returns the bits of the largest magnitude: the bits have the order of magnitudes, with NaN above infinity.
template <int kDtype>
uint32_t largest_magnitude(const void* x, int64_t at, int64_t left, int64_t size) {
  uint32x4_t most = vdupq_n_u32(0);
  for (int64_t e = 0; e < size && e < left; e += 8) {
    const Eight v = Neon::abs(load_eight_of(kDtype, x, at + e, left - e));
    most = vmaxq_u32(most, vmaxq_u32(bits_of_floats(v.a), bits_of_floats(v.b)));
  }
  return vmaxvq_u32(most);
}

// Stores the first `count`, a multiple of 4, of 8 integers in [-127, 127].
TW_INLINE void store_bytes(int8_t* q, int64_t count, int32x4_t low, int32x4_t high) {
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high)));
  int8_t eight[8];
  vst1_s8(eight, bytes);
  memcpy(q, eight, count >= 8 ? 8 : 4);
}

// Quantizes elements [0, size) of one group, of which the first `left` exist. Returns the sum of q.
template <int kDtype>
int32_t quantize_group(const void* x, int64_t at, int64_t left, int64_t size, int8_t* q, float* scale) {
  const RowScale s = row_scale(largest_magnitude<kDtype>(x, at, left, size));
  *scale = s.scale;
  int32x4_t sum = vdupq_n_s32(0);
  for (int64_t e = 0; e < size; e += 8) {
    int32x4_t low = vdupq_n_s32(0), high = low;
    if (s.inverse > 0.0f) {
      const Eight v = Neon::mul(load_eight_of(kDtype, x, at + e, left - e), Neon::all(s.inverse));
      low = vcvtnq_s32_f32(v.a), high = vcvtnq_s32_f32(v.b);
    }
    sum = vaddq_s32(sum, vaddq_s32(low, high));
    store_bytes(q + e, size - e, low, high);
  }
  return vaddvq_s32(sum);
}

struct EightInts {
  int32x4_t a, b;
};

// The `Set` of vector_weights.h.
struct WeightsNeon : Neon {
  using Ints = EightInts;

  static void gather(const tw_quantize_weights_args* a, int64_t begin, int64_t size, float* x) {
    for (int64_t row = 0; row < TW_LANES; ++row) {
      const int64_t there = row < a->rows ? a->k - begin : 0, from = row * a->w_stride + begin;
      for (int64_t k = 0; k < size; ++k) {
        float value = 0.0f;
        if (k < there)
          value = a->w_dtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)a->w)[from + k])
                                        : ((const float*)a->w)[from + k];
        x[k * TW_LANES + row] = value;
      }
    }
  }
  static TW_INLINE Vector narrow(Vector v) {
    return {widened_bf16(narrowed_bf16(v.a)), widened_bf16(narrowed_bf16(v.b))};
  }
  static TW_INLINE Vector narrow_f16(Vector v) {
    const Vector kept = min(max(v, all(-TW_F16_LARGEST)), all(TW_F16_LARGEST));
    return {vcvt_f32_f16(vcvt_f16_f32(kept.a)), vcvt_f32_f16(vcvt_f16_f32(kept.b))};
  }
  // Returns the power of two at or below a magnitude.
  static TW_INLINE Vector power_below(Vector v) {
    const uint32x4_t exponent = vdupq_n_u32(0x7f800000u);
    return {float_bits(vandq_u32(bits_of_floats(v.a), exponent)),
            float_bits(vandq_u32(bits_of_floats(v.b), exponent))};
  }
  static TW_INLINE Ints integers(Vector v) { return {vcvtnq_s32_f32(v.a), vcvtnq_s32_f32(v.b)}; }
  // Returns the bits of `mask`, counted from bit `from` on.
  static TW_INLINE Ints bits_of(Ints v, int from, int mask) {
    const int32x4_t by = vdupq_n_s32(-from), kept = vdupq_n_s32(mask);
    return {vandq_s32(vshlq_s32(v.a, by), kept), vandq_s32(vshlq_s32(v.b, by), kept)};
  }
  // Returns the codes of numbers of E4M3.
  static TW_INLINE Ints code_of_e4m3(Vector v) { return {code_of_four(v.a), code_of_four(v.b)}; }
  static TW_INLINE Ints shifted_or(Ints line, Ints v, int by) {
    const int32x4_t shift = vdupq_n_s32(by);
    return {vorrq_s32(line.a, vshlq_s32(v.a, shift)), vorrq_s32(line.b, vshlq_s32(v.b, shift))};
  }
  static TW_INLINE void put(char* to, Ints line) {
    vst1q_s32((int32_t*)to, line.a);
    vst1q_s32((int32_t*)to + 4, line.b);
  }

 private:
  static TW_INLINE int32x4_t code_of_four(float32x4_t v) {
    const float32x4_t size = vabsq_f32(v);
    const int32x4_t normal = vsubq_s32(vshrq_n_s32(vreinterpretq_s32_f32(size), 20), vdupq_n_s32(120 << 3));
    const int32x4_t small = vcvtnq_s32_f32(vmulq_f32(size, vdupq_n_f32(512.0f)));
    const int32x4_t code = vbslq_s32(vcltq_f32(size, vdupq_n_f32(0x1p-6f)), small, normal);
    const uint32x4_t sign = vandq_u32(vshrq_n_u32(bits_of_floats(v), 24), vdupq_n_u32(0x80));
    return vorrq_s32(code, vreinterpretq_s32_u32(sign));
  }
};

}  // namespace

#define TW_NEON(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_neon(const tw_quantized_matmul_args* a) { \
    run<Dots<PairProducts>, PairProducts, dtype>(a);                                     \
  }
TW_FOR_EACH_QUANTIZED(TW_NEON)
#undef TW_NEON

extern "C" void tw_quantize_rows_neon(const tw_quantize_rows_args* a) {
  a->x_dtype == TW_BF16 ? quantize_rows(a, quantize_group<TW_BF16>)
                        : quantize_rows(a, quantize_group<TW_F32>);
}

extern "C" void tw_quantize_weights_neon(const tw_quantize_weights_args* a) {
  quantize_weights<WeightsNeon>(a);
}
