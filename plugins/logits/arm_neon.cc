// The loops over a row for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/logits/vector.h"

namespace {

struct Wide128 {
  using Vector = float64x2_t;
  static constexpr int kLanes = 2;
  static TW_INLINE Vector widen(const float* x) { return vcvt_f64_f32(vld1_f32(x)); }
  static TW_INLINE void store(double* y, Vector value) { vst1q_f64(y, value); }
  static TW_INLINE Vector all(double x) { return vdupq_n_f64(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return vaddq_f64(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return vsubq_f64(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return vmulq_f64(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f64(c, a, b); }
  static TW_INLINE Vector minus_product(Vector a, Vector b, Vector c) { return vfmsq_f64(a, b, c); }
  // Returns the larger, or b if one of them is NaN.
  static TW_INLINE Vector max(Vector a, Vector b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
  static TW_INLINE Vector zero_below_700(Vector value, Vector x) {
    return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(value), vcgeq_f64(x, all(-700.0))));
  }
  static TW_INLINE Vector times_power(Vector p, Vector shifted) {
    const uint64x2_t power = vshlq_n_u64(vreinterpretq_u64_f64(shifted), 52);
    return vreinterpretq_f64_u64(vaddq_u64(vreinterpretq_u64_f64(p), power));
  }
};

// Sixteen floats.
struct Row128 {
  static constexpr int kParts = TW_LANES / 4;
  struct Floats {
    float32x4_t part[kParts];
  };
  using Unordered = uint32x4_t;
  struct Doubles {
    float64x2_t lanes[2 * kParts];
  };

  // Returns the vector whose i-th part is of(i).
  template <class Of>
  static TW_INLINE Floats each(Of of) {
    Floats y;
    TW_UNROLL
    for (int i = 0; i < kParts; ++i) y.part[i] = of(i);
    return y;
  }
  static TW_INLINE Floats load(const float* x) {
    return each([=](int i) TW_ALWAYS { return vld1q_f32(x + 4 * i); });
  }
  static TW_INLINE Floats all(float x) {
    return each([=](int) TW_ALWAYS { return vdupq_n_f32(x); });
  }
  static TW_INLINE Floats max(Floats x, Floats y) {
    return each([&](int i) TW_ALWAYS { return larger(x.part[i], y.part[i]); });
  }
  static TW_INLINE Floats add(Floats x, Floats y) {
    return each([&](int i) TW_ALWAYS { return vaddq_f32(x.part[i], y.part[i]); });
  }
  static TW_INLINE Floats sub(Floats x, Floats y) {
    return each([&](int i) TW_ALWAYS { return vsubq_f32(x.part[i], y.part[i]); });
  }
  static TW_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return each([&](int i) TW_ALWAYS { return vfmaq_f32(z.part[i], x.part[i], y.part[i]); });
  }
  static TW_INLINE Floats fma_minus(Floats x, Floats y, Floats z) {
    return each([&](int i) TW_ALWAYS { return vfmaq_f32(vnegq_f32(z.part[i]), x.part[i], y.part[i]); });
  }
  static TW_INLINE Floats divide(Floats x, float y) {
    return each([&](int i) TW_ALWAYS { return vdivq_f32(x.part[i], vdupq_n_f32(y)); });
  }
  // Converts to integers, and takes them as the bits of floats.
  static TW_INLINE Floats bits_of(Floats x) {
    return each([&](int i) TW_ALWAYS { return vreinterpretq_f32_s32(vcvtq_s32_f32(x.part[i])); });
  }
  static TW_INLINE Floats times_power(Floats p, Floats shifted) {
    return each([&](int i) TW_ALWAYS {
      const uint32x4_t power = vshlq_n_u32(bits_of_floats(shifted.part[i]), 23);
      return float_bits(vaddq_u32(bits_of_floats(p.part[i]), power));
    });
  }
  // The bits of what is unordered are those of what equals itself, turned round.
  static TW_INLINE Unordered ordered() { return vdupq_n_u32(0); }
  static TW_INLINE void note(Unordered* found, Floats x, Floats y) {
    TW_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const uint32x4_t same = vandq_u32(vceqq_f32(x.part[i], x.part[i]), vceqq_f32(y.part[i], y.part[i]));
      *found = vornq_u32(*found, same);
    }
  }
  static TW_INLINE int32_t any(Unordered found) { return vmaxvq_u32(found) != 0; }
  static TW_INLINE float largest(Floats x) {
    const float32x4_t four = larger(larger(x.part[0], x.part[2]), larger(x.part[1], x.part[3]));
    const float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
  }
  static TW_INLINE Doubles zero() {
    Doubles y;
    TW_UNROLL
    for (int i = 0; i < 2 * kParts; ++i) y.lanes[i] = vdupq_n_f64(0.0);
    return y;
  }
  // Returns two of the sixteen values as doubles.
  static TW_INLINE float64x2_t eighth(const Floats& x, int which) {
    const float32x4_t part = x.part[which / 2];
    return which % 2 ? vcvt_high_f64_f32(part) : vcvt_f64_f32(vget_low_f32(part));
  }
  static TW_INLINE void accumulate(Doubles* sum, Floats x) {
    TW_UNROLL
    for (int i = 0; i < 2 * kParts; ++i) sum->lanes[i] = vaddq_f64(sum->lanes[i], eighth(x, i));
  }
  static TW_INLINE Doubles wide_weights(Floats x, double shift) {
    const float64x2_t log2e = vdupq_n_f64(TW_WIDE_LOG2E), s = vdupq_n_f64(-shift);
    Doubles w;
    TW_UNROLL
    for (int i = 0; i < 2 * kParts; ++i) w.lanes[i] = wide_weight<Wide128>(vfmaq_f64(s, eighth(x, i), log2e));
    return w;
  }
  static TW_INLINE void add_above(Doubles* sum, Floats x, float bound, const Doubles& w) {
    TW_UNROLL
    for (int i = 0; i < 2 * kParts; ++i) {
      const uint64x2_t more = vcgtq_f64(eighth(x, i), vdupq_n_f64((double)bound));
      const uint64x2_t kept = vandq_u64(vreinterpretq_u64_f64(w.lanes[i]), more);
      sum->lanes[i] = vaddq_f64(sum->lanes[i], vreinterpretq_f64_u64(kept));
    }
  }
  // Lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
  static TW_INLINE double tree_sum(Doubles sum) {
    TW_UNROLL
    for (int half = kParts; half > 0; half /= 2) {
      TW_UNROLL
      for (int i = 0; i < half; ++i) sum.lanes[i] = vaddq_f64(sum.lanes[i], sum.lanes[i + half]);
    }
    return vgetq_lane_f64(sum.lanes[0], 0) + vgetq_lane_f64(sum.lanes[0], 1);
  }
  static TW_INLINE int64_t collect(const float* x, float low, float high, int32_t first, float* values,
                                   int32_t* ids) {
    const uint32x4_t bit = {1, 2, 4, 8};
    unsigned in = 0;
    TW_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const float32x4_t v = vld1q_f32(x + 4 * i);
      const uint32x4_t within = vandq_u32(vcgeq_f32(v, vdupq_n_f32(low)), vcleq_f32(v, vdupq_n_f32(high)));
      in |= vaddvq_u32(vandq_u32(within, bit)) << 4 * i;
    }
    int64_t found = 0;
    for (; in; in &= in - 1, ++found) {
      const int lane = __builtin_ctz(in);
      values[found] = x[lane];
      ids[found] = first + lane;
    }
    return found;
  }
};

}  // namespace

extern "C" const tw_logits_loops* tw_logits_neon(void) { return logits_loops<Row128, Wide128>(); }
