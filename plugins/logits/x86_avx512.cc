// The loops over a row for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/logits/vector.h"

namespace {

struct Wide512 {
  using Vector = __m512d;
  static constexpr int kLanes = 8;
  static TW_INLINE Vector widen(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
  static TW_INLINE void store(double* y, Vector value) { _mm512_storeu_pd(y, value); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_pd(a, b); }
  static TW_INLINE Vector zero_below_700(Vector value, Vector x) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, all(-700.0), _CMP_GE_OQ), value);
  }
  static TW_INLINE Vector all(double x) { return _mm512_set1_pd(x); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm512_max_pd(a, b); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_pd(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
  static TW_INLINE Vector minus_product(Vector a, Vector b, Vector c) { return _mm512_fnmadd_pd(b, c, a); }
  static TW_INLINE Vector times_power(Vector p, Vector shifted) {
    return _mm512_castsi512_pd(
        _mm512_add_epi64(_mm512_castpd_si512(p), _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52)));
  }
};

struct Row512 {
  using Floats = __m512;
  using Unordered = __mmask16;
  struct Doubles {
    __m512d low, high;
  };
  static TW_INLINE Floats load(const float* x) { return _mm512_loadu_ps(x); }
  static TW_INLINE Floats all(float x) { return _mm512_set1_ps(x); }
  static TW_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static TW_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static TW_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static TW_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static TW_INLINE Floats fma_minus(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
  // Converts to integers, and takes them as the bits of floats.
  static TW_INLINE Floats bits_of(Floats a) { return _mm512_castsi512_ps(_mm512_cvttps_epi32(a)); }
  // A bit is set for each lane that has had no NaN so far.
  static TW_INLINE Unordered ordered() { return 0xffff; }
  static TW_INLINE void note(Unordered* found, Floats a, Floats b) {
    *found = _mm512_mask_cmp_ps_mask(*found, a, b, _CMP_ORD_Q);
  }
  static TW_INLINE int32_t any(Unordered found) { return found != 0xffff; }
  static TW_INLINE float largest(Floats a) { return _mm512_reduce_max_ps(a); }
  static TW_INLINE Floats times_power(Floats p, Floats shifted) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
  }
  static TW_INLINE Doubles zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static TW_INLINE __m512d low(Floats a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
  static TW_INLINE __m512d high(Floats a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
  static TW_INLINE void accumulate(Doubles* lanes, Floats a) {
    lanes->low = _mm512_add_pd(lanes->low, low(a));
    lanes->high = _mm512_add_pd(lanes->high, high(a));
  }
  static TW_INLINE Floats divide(Floats a, float b) { return _mm512_div_ps(a, all(b)); }
  static TW_INLINE Doubles wide_weights(Floats a, double shift) {
    const __m512d log2e = _mm512_set1_pd(TW_WIDE_LOG2E), s = _mm512_set1_pd(-shift);
    return {wide_weight<Wide512>(_mm512_fmadd_pd(low(a), log2e, s)),
            wide_weight<Wide512>(_mm512_fmadd_pd(high(a), log2e, s))};
  }
  static TW_INLINE void add_above(Doubles* lanes, Floats x, float bound, const Doubles& w) {
    const __mmask16 more = _mm512_cmp_ps_mask(x, all(bound), _CMP_GT_OQ);
    lanes->low = _mm512_mask_add_pd(lanes->low, (__mmask8)more, lanes->low, w.low);
    lanes->high = _mm512_mask_add_pd(lanes->high, (__mmask8)(more >> 8), lanes->high, w.high);
  }
  static TW_INLINE double tree_sum(Doubles lanes) {
    const __m512d h = _mm512_add_pd(lanes.low, lanes.high);
    const __m256d q = _mm256_add_pd(_mm512_castpd512_pd256(h), _mm512_extractf64x4_pd(h, 1));
    const __m128d d = _mm_add_pd(_mm256_castpd256_pd128(q), _mm256_extractf128_pd(q, 1));
    return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
  }
  static TW_INLINE int64_t collect(const float* x, float low, float high, int32_t first, float* values,
                                   int32_t* ids) {
    const Floats v = load(x);
    const __mmask16 in =
        _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(v, all(low), _CMP_GE_OQ), v, all(high), _CMP_LE_OQ);
    if (!in) return 0;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps(in, v));
    _mm512_storeu_si512(ids,
                        _mm512_maskz_compress_epi32(in, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
    return __builtin_popcount(in);
  }
};

}  // namespace

extern "C" const tw_logits_loops* tw_logits_avx512(void) { return logits_loops<Row512, Wide512>(); }
