// weight_only_matmul for NEON, with the same bits as scalar.cc.
//
// A panel takes four registers, so 6 rows and 1 panel, or 1 row and 4 panels, leave enough of the 32.
#include "plugins/common/arm_neon.h"

#include "plugins/weight_only_matmul/arm_neon_numbers.h"
#include "plugins/weight_only_matmul/floats.h"

namespace {

// `Few` of vector_few.h. The sums of more than two rows and one panel leave registers to decode in.
template <int kOfX>
struct FewNeon {
  using Isa = Neon;
  template <int R>
  static constexpr int kPanels = R <= 2 ? 2 : 1;
  static constexpr int kOf = TW_F32, kBytes = kOfX == TW_BF16 ? 2 : 4;

  static TW_INLINE Eight at(const char* x, int j, int64_t) {
    if constexpr (kOfX == TW_F32) {
      return Neon::all(((const float*)x)[j]);
    } else {
      return Neon::all(tw_bf16_to_f32(((const uint16_t*)x)[j]));
    }
  }

  static TW_INLINE Eight step(Eight sum, Eight x, Eight w) { return Neon::fma(x, w, sum); }

  static TW_INLINE Eight scales(const Packed& p, const char* from, int half) {
    const auto* words = (const uint16_t*)from + half * 8;
    switch (p.group == 0 ? TW_SCALES_F32 : p.codec.scales) {
      case TW_SCALES_F32:
        return load_eight((const float*)from + half * 8, 8);
      case TW_SCALES_F16: {
        const float16x8_t both = vreinterpretq_f16_u16(vld1q_u16(words));
        return {vcvt_f32_f16(vget_low_f16(both)), vcvt_high_f32_f16(both)};
      }
      case TW_SCALES_E8M0: {
        const uint16x8_t exponents = vmovl_u8(vld1_u8((const uint8_t*)from + half * 8));
        return {float_bits(vshlq_n_u32(vmovl_u16(vget_low_u16(exponents)), 23)),
                float_bits(vshlq_n_u32(vmovl_high_u16(exponents), 23))};
      }
      default:
        return load_eight_bf16(words, 8);
    }
  }
};

// The `Of` of floats.h.
struct Kernels {
  using Isa = Neon;
  template <int kOfX>
  using Few = FewNeon<kOfX>;
  template <class Form>
  using Numbers = ::Numbers<Form>;

  static TW_INLINE Eight load(int dtype, const void* x, int64_t at, int64_t count) {
    return load_eight_of(dtype, x, at, count);
  }

  static constexpr int64_t panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  template <int R, int P>
  static void micro(const Tile* t) {
    const float *x = t->x, *scale = t->scale;
    const char* w = t->w;
    int64_t left = t->depth;
    for (int64_t s = t->spans; s > 0; --s, scale += kUnit * kLanes) {
      float32x4_t acc[R][4 * P];
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < 4 * P; ++i)
          acc[r][i] = t->whole ? vld1q_f32(t->sum + r * kUnit * kLanes + i * 4) : vdupq_n_f32(0.0f);
      }
      const int64_t steps = at_most(left, t->span);
      left -= steps;
      for (int64_t k = steps; k > 0; --k, ++x, w += 64) {
        float32x4_t value[4 * P];
        TW_UNROLL
        for (int i = 0; i < 4 * P; ++i)
          value[i] = vld1q_f32((const float*)(w + i / 4 * Decoded<TW_F32>::kStride) + i % 4 * 4);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const float32x4_t row = vld1q_dup_f32(x + r * kStride);
          TW_UNROLL
          for (int i = 0; i < 4 * P; ++i) acc[r][i] = vfmaq_f32(acc[r][i], row, value[i]);
        }
      }
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < 4 * P; ++i) {
          float* sum = t->sum + r * kUnit * kLanes + i * 4;
          vst1q_f32(sum,
                    t->whole ? acc[r][i] : vfmaq_f32(vld1q_f32(sum), acc[r][i], vld1q_f32(scale + i * 4)));
        }
      }
    }
  }
};

}  // namespace

extern "C" void tw_weight_only_matmul_f32_neon(const tw_weight_only_matmul_args* a) {
  matmul<Floats<Kernels, TW_F32>>(a);
}
extern "C" void tw_weight_only_matmul_bf16_neon(const tw_weight_only_matmul_args* a) {
  matmul<Floats<Kernels, TW_BF16>>(a);
}
