// The loops over a row for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/logits/vector.h"

namespace {

struct Wide256 {
  using Vector = __m256d;
  static constexpr int kLanes = 4;
  static TW_INLINE Vector widen(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
  static TW_INLINE void store(double* y, Vector value) { _mm256_storeu_pd(y, value); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_pd(a, b); }
  static TW_INLINE Vector zero_below_700(Vector value, Vector x) {
    return _mm256_and_pd(value, _mm256_cmp_pd(x, all(-700.0), _CMP_GE_OQ));
  }
  static TW_INLINE Vector all(double x) { return _mm256_set1_pd(x); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm256_max_pd(a, b); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_pd(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
  static TW_INLINE Vector minus_product(Vector a, Vector b, Vector c) { return _mm256_fnmadd_pd(b, c, a); }
  static TW_INLINE Vector times_power(Vector p, Vector shifted) {
    return _mm256_castsi256_pd(
        _mm256_add_epi64(_mm256_castpd_si256(p), _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52)));
  }
};

struct Row256 {
  struct Floats {
    __m256 a, b;
  };
  using Unordered = __m256;
  struct Doubles {
    __m256d lanes[4];
  };
  static TW_INLINE Floats load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
  static TW_INLINE Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static TW_INLINE Floats max(Floats x, Floats y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
  }
  static TW_INLINE Floats add(Floats x, Floats y) {
    return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
  }
  static TW_INLINE Floats sub(Floats x, Floats y) {
    return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
  }
  static TW_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static TW_INLINE Floats fma_minus(Floats x, Floats y, Floats z) {
    return {_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)};
  }
  // Converts to integers, and takes them as the bits of floats.
  static TW_INLINE Floats bits_of(Floats x) {
    return {_mm256_castsi256_ps(_mm256_cvttps_epi32(x.a)), _mm256_castsi256_ps(_mm256_cvttps_epi32(x.b))};
  }
  static TW_INLINE Unordered ordered() { return _mm256_setzero_ps(); }
  static TW_INLINE void note(Unordered* found, Floats x, Floats y) {
    *found = _mm256_or_ps(
        *found, _mm256_or_ps(_mm256_cmp_ps(x.a, y.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, y.b, _CMP_UNORD_Q)));
  }
  static TW_INLINE int32_t any(Unordered found) { return _mm256_movemask_ps(found) != 0; }
  static TW_INLINE float largest(Floats x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  static TW_INLINE __m256 times_power(__m256 p, __m256 shifted) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
  }
  static TW_INLINE Floats times_power(Floats p, Floats shifted) {
    return {times_power(p.a, shifted.a), times_power(p.b, shifted.b)};
  }
  static TW_INLINE Doubles zero() {
    const __m256d z = _mm256_setzero_pd();
    return {{z, z, z, z}};
  }
  // Returns four of the sixteen values as doubles.
  static TW_INLINE __m256d quarter(Floats x, int which) {
    const __m256 half = which < 2 ? x.a : x.b;
    return _mm256_cvtps_pd(which % 2 ? _mm256_extractf128_ps(half, 1) : _mm256_castps256_ps128(half));
  }
  static TW_INLINE void accumulate(Doubles* sum, Floats x) {
    TW_UNROLL
    for (int i = 0; i < 4; ++i) sum->lanes[i] = _mm256_add_pd(sum->lanes[i], quarter(x, i));
  }
  static TW_INLINE Floats divide(Floats x, float y) {
    return {_mm256_div_ps(x.a, _mm256_set1_ps(y)), _mm256_div_ps(x.b, _mm256_set1_ps(y))};
  }
  static TW_INLINE Doubles wide_weights(Floats x, double shift) {
    const __m256d log2e = _mm256_set1_pd(TW_WIDE_LOG2E), s = _mm256_set1_pd(-shift);
    Doubles w;
    TW_UNROLL
    for (int i = 0; i < 4; ++i) w.lanes[i] = wide_weight<Wide256>(_mm256_fmadd_pd(quarter(x, i), log2e, s));
    return w;
  }
  static TW_INLINE void add_above(Doubles* sum, Floats x, float bound, const Doubles& w) {
    TW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m256d more = _mm256_cmp_pd(quarter(x, i), _mm256_set1_pd((double)bound), _CMP_GT_OQ);
      sum->lanes[i] = _mm256_add_pd(sum->lanes[i], _mm256_and_pd(w.lanes[i], more));
    }
  }
  static TW_INLINE double tree_sum(Doubles sum) {
    const __m256d low = _mm256_add_pd(sum.lanes[0], sum.lanes[2]),
                  high = _mm256_add_pd(sum.lanes[1], sum.lanes[3]);
    const __m256d q = _mm256_add_pd(low, high);
    const __m128d d = _mm_add_pd(_mm256_castpd256_pd128(q), _mm256_extractf128_pd(q, 1));
    return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
  }
  static TW_INLINE __m256 within(__m256 v, float low, float high) {
    return _mm256_and_ps(_mm256_cmp_ps(v, _mm256_set1_ps(low), _CMP_GE_OQ),
                         _mm256_cmp_ps(v, _mm256_set1_ps(high), _CMP_LE_OQ));
  }
  static TW_INLINE int64_t collect(const float* x, float low, float high, int32_t first, float* values,
                                   int32_t* ids) {
    const Floats v = load(x);
    const int low_half = _mm256_movemask_ps(within(v.a, low, high));
    unsigned in = (unsigned)(low_half | _mm256_movemask_ps(within(v.b, low, high)) << 8);
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

extern "C" const tw_logits_loops* tw_logits_avx2(void) { return logits_loops<Row256, Wide256>(); }
