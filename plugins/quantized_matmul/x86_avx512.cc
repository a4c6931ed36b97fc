// quantize_rows and quantize_weights for AVX-512, with the same bits as scalar.cc.
#include "plugins/common/x86_avx512.h"

#include "plugins/quantized_matmul/vector_rows.h"
#include "plugins/quantized_matmul/vector_weights.h"
#include "plugins/quantized_matmul/x86_gather.h"

namespace {

// Loads 16 elements from `at` of a row that has `left` more; elements past the row's end are zeros.
template <int kDtype>
inline __attribute__((always_inline)) __m512 load(const void* x, int64_t at, int64_t left) {
  const __mmask16 lanes = tw_lanes_avx512(left);
  if (kDtype == TW_BF16)
    return tw_bf16_to_f32_avx512(_mm256_maskz_loadu_epi16(lanes, (const uint16_t*)x + at));
  return _mm512_maskz_loadu_ps(lanes, (const float*)x + at);
}

// Quantizes elements [0, size) of one group, of which the first `left` exist. Returns the sum of q.
template <int kDtype>
int32_t quantize_group(const void* x, int64_t at, int64_t left, int64_t size, int8_t* q, float* scale) {
  __m512i most = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t e = 0; e < size && e < left; e += 16) {
    const __m512i bits = _mm512_castps_si512(load<kDtype>(x, at + e, left - e));
    most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
  }
  const RowScale s = row_scale(_mm512_reduce_max_epu32(most));
  *scale = s.scale;
  const __m512 inverse = _mm512_set1_ps(s.inverse);
  __m512i sum = _mm512_setzero_si512();
  for (int64_t e = 0; e < size; e += 16) {
    __m512i value = _mm512_setzero_si512();
    if (s.inverse > 0.0f)
      value = _mm512_cvtps_epi32(_mm512_mul_ps(load<kDtype>(x, at + e, left - e), inverse));
    sum = _mm512_add_epi32(sum, value);
    _mm_mask_storeu_epi8(q + e, tw_lanes_avx512(size - e), _mm512_cvtepi32_epi8(value));
  }
  return _mm512_reduce_add_epi32(sum);
}

// The `Set` of vector_weights.h.
struct WeightsAvx512 : Avx512 {
  using Ints = __m512i;

  static void gather(const tw_quantize_weights_args* a, int64_t begin, int64_t size, float* x) {
    gather_columns(a, begin, size, x);
  }

  static TW_INLINE Vector narrow(Vector v) { return tw_bf16_to_f32_avx512(tw_f32_to_bf16_avx512(v)); }
  static TW_INLINE Vector narrow_f16(Vector v) {
    const Vector kept = min(max(v, all(-TW_F16_LARGEST)), all(TW_F16_LARGEST));
    return _mm512_cvtph_ps(_mm512_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Returns the power of two at or below a magnitude.
  static TW_INLINE Vector power_below(Vector v) {
    return _mm512_and_ps(v, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)));
  }
  static TW_INLINE Ints integers(Vector v) { return _mm512_cvtps_epi32(v); }
  // Returns the bits of `mask`, counted from bit `from` on.
  static TW_INLINE Ints bits_of(Ints v, int from, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)from), _mm512_set1_epi32(mask));
  }
  // Returns the codes of numbers of E4M3.
  static TW_INLINE Ints code_of_e4m3(Vector v) {
    const Ints bits = _mm512_castps_si512(v), size = _mm512_castps_si512(abs(v));
    const Ints normal = _mm512_sub_epi32(_mm512_srli_epi32(size, 20), _mm512_set1_epi32(120 << 3));
    const __mmask16 is_small = less(abs(v), all(0x1p-6f));
    const Ints code = _mm512_mask_mov_epi32(normal, is_small, integers(mul(abs(v), all(512.0f))));
    return _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80)));
  }
  static TW_INLINE Ints shifted_or(Ints line, Ints v, int by) {
    return _mm512_or_si512(line, _mm512_slli_epi32(v, by));
  }
  static TW_INLINE void put(char* to, Ints line) { _mm512_storeu_si512(to, line); }
};

}  // namespace

extern "C" void tw_quantize_rows_avx512(const tw_quantize_rows_args* a) {
  a->x_dtype == TW_BF16 ? quantize_rows(a, quantize_group<TW_BF16>)
                        : quantize_rows(a, quantize_group<TW_F32>);
}

extern "C" void tw_quantize_weights_avx512(const tw_quantize_weights_args* a) {
  quantize_weights<WeightsAvx512>(a);
}
