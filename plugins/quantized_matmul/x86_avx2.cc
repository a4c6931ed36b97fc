// quantized_matmul, quantize_rows and quantize_weights for AVX2, with the same bits as scalar.cc.
//
// vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16 bits, which saturate. Weights of 4 bits
// are stored unsigned (w + 8): 32 elements of K, which are 16 products of at most 15 * 127, fit (30480 <
// 32768). So do 32 of 3 and of 2 bits, which are no larger. Codes of E2M1 become unsigned by a table (2 w +
// 12): 16 elements, 8 products of at most 24 * 127, fit. The sums start at minus what is added. Bytes are
// multiplied as |w| times x with the sign of w; two such products are at most 32258.
#include "plugins/quantized_matmul/vector_rows.h"
#include "plugins/quantized_matmul/vector_weights.h"
#include "plugins/quantized_matmul/x86_gather.h"
#include "plugins/quantized_matmul/x86_ymm_sparse.h"
#include "plugins/quantized_matmul/x86_ymm_steps.h"

namespace {

// These add in place. With the intrinsics, GCC may put the sum elsewhere, and run out of registers.
TW_INLINE void add_words(__m256i& sum, __m256i x) { __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x)); }
TW_INLINE void add_doubles(__m256i& sum, __m256i x) { __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x)); }

TW_INLINE __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

template <int kOf>
struct Bytes {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = false;

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines; n > 0; --n) {
      TW_UNROLL
      for (int i = 0; i < N; ++i) {
        const __m256i w = weights(c, g->w_stride, i), size = _mm256_abs_epi8(w);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m256i x = _mm256_sign_epi8(elements(c, g->x_stride, r, 0), w);
          add_doubles(acc[r][i], widened(_mm256_maddubs_epi16(size, x)));
        }
        // Makes the compiler read x again, because no registers are free to keep it.
        if (R > 1) __asm__("" : "+r"(c.x[0]), "+r"(c.x[1]));
      }
      pin(acc);
      advance(c, 4, 64);
    }
  }
};

TW_INLINE __m256i add_pairs(__m256i sum, __m256i x, __m256i w) {
  add_words(sum, _mm256_maddubs_epi16(w, x));
  return sum;
}

template <int kOf>
struct Codes {
  static constexpr int kDtype = kOf;
  static constexpr bool kUnsigned = true;
  // Steps of 4 elements whose sums fit 16 bits, and the blocks and lines that they take.
  static constexpr int kSteps = tw_codec(kOf).values == TW_E2M1 ? 4 : 8;
  static constexpr int kBlocks = kSteps / tw_block_steps(kOf), kLines = kBlocks * tw_block_lines(kOf);

  template <int R, int N>
  static TW_INLINE void dot(__m256i (&acc)[R][N], const Group* g) {
    Cursor c = cursor_of(g);
    for (int64_t n = g->lines / kLines; n > 0; --n) {
      __m256i pairs[R][N];
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < N; ++i) pairs[r][i] = _mm256_setzero_si256();
      }
      for (int block = 0; block < kBlocks; ++block) add_steps<kOf, 0>(pairs, c, g, add_pairs);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < N; ++i) acc[r][i] = _mm256_add_epi32(acc[r][i], widened(pairs[r][i]));
      }
    }
  }
};

struct AddProducts {
  static TW_INLINE __m256i add(__m256i sum, __m256i size, __m256i x) {
    return _mm256_add_epi32(sum, widened(_mm256_maddubs_epi16(size, x)));
  }
};

// Loads 8 elements from `at` of a row that has `left` more; elements past the row's end are zeros.
template <int kDtype>
TW_INLINE __m256 load(const void* x, int64_t at, int64_t left) {
  return kDtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)x + at, left)
                           : tw_load_avx2((const float*)x + at, left);
}

TW_INLINE __m128i halves_max(__m256i x) {
  return _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

// Returns the bits of the largest magnitude: the bits have the order of magnitudes, with NaN above infinity.
template <int kDtype>
uint32_t largest_magnitude(const void* x, int64_t at, int64_t left, int64_t size) {
  __m256i most = _mm256_setzero_si256();
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t e = 0; e < size && e < left; e += 8) {
    const __m256i bits = _mm256_castps_si256(load<kDtype>(x, at + e, left - e));
    most = _mm256_max_epu32(most, _mm256_and_si256(bits, magnitude));
  }
  __m128i m = halves_max(most);
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return (uint32_t)_mm_cvtsi128_si32(m);
}

TW_INLINE int32_t sum_of(__m256i x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Stores the first `count`, a multiple of 4, of 8 integers in [-127, 127].
TW_INLINE void store_bytes(int8_t* q, int64_t count, __m256i value) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
  const __m128i bytes = _mm_packs_epi16(words, words);
  const int64_t all = _mm_cvtsi128_si64(bytes);
  memcpy(q, &all, count >= 8 ? 8 : 4);
}

// Quantizes elements [0, size) of one group, of which the first `left` exist. Returns the sum of q.
template <int kDtype>
int32_t quantize_group(const void* x, int64_t at, int64_t left, int64_t size, int8_t* q, float* scale) {
  const RowScale s = row_scale(largest_magnitude<kDtype>(x, at, left, size));
  *scale = s.scale;
  const __m256 inverse = _mm256_set1_ps(s.inverse);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t e = 0; e < size; e += 8) {
    __m256i value = _mm256_setzero_si256();
    if (s.inverse > 0.0f)
      value = _mm256_cvtps_epi32(_mm256_mul_ps(load<kDtype>(x, at + e, left - e), inverse));
    sum = _mm256_add_epi32(sum, value);
    store_bytes(q + e, size - e, value);
  }
  return sum_of(sum);
}

// The `Set` of vector_weights.h.
struct WeightsAvx2 : Avx2 {
  using Ints = __m256i;

  static void gather(const tw_quantize_weights_args* a, int64_t begin, int64_t size, float* x) {
    gather_columns(a, begin, size, x);
  }

  static TW_INLINE Vector narrow(Vector v) { return tw_bf16_to_f32_avx2(tw_f32_to_bf16_avx2(v)); }
  static TW_INLINE Vector narrow_f16(Vector v) {
    const Vector kept = min(max(v, all(-TW_F16_LARGEST)), all(TW_F16_LARGEST));
    return _mm256_cvtph_ps(_mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Returns the power of two at or below a magnitude.
  static TW_INLINE Vector power_below(Vector v) {
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
  }
  static TW_INLINE Ints integers(Vector v) { return _mm256_cvtps_epi32(v); }
  // Returns the bits of `mask`, counted from bit `from` on.
  static TW_INLINE Ints bits_of(Ints v, int from, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(v, from), _mm256_set1_epi32(mask));
  }
  // Returns the codes of numbers of E4M3.
  static TW_INLINE Ints code_of_e4m3(Vector v) {
    const Ints bits = _mm256_castps_si256(v), size = _mm256_castps_si256(abs(v));
    const Ints normal = _mm256_sub_epi32(_mm256_srli_epi32(size, 20), _mm256_set1_epi32(120 << 3));
    const Ints small = integers(mul(abs(v), all(512.0f)));
    const Ints code = _mm256_castps_si256(
        choose(less(abs(v), all(0x1p-6f)), _mm256_castsi256_ps(small), _mm256_castsi256_ps(normal)));
    return _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
  }
  static TW_INLINE Ints shifted_or(Ints line, Ints v, int by) {
    return _mm256_or_si256(line, _mm256_slli_epi32(v, by));
  }
  static TW_INLINE void put(char* to, Ints line) { _mm256_storeu_si256((__m256i*)to, line); }
};

template <int kOf>
struct Sparse : SparseDot<kOf, AddProducts> {};

}  // namespace

#define TW_AVX2(dtype, kind, name)                                                       \
  extern "C" void tw_quantized_matmul_##kind##_avx2(const tw_quantized_matmul_args* a) { \
    run_any<Bytes, Codes, Sparse, dtype>(a);                                             \
  }
TW_FOR_EACH_QUANTIZED(TW_AVX2)
#undef TW_AVX2

extern "C" void tw_quantize_rows_avx2(const tw_quantize_rows_args* a) {
  a->x_dtype == TW_BF16 ? quantize_rows(a, quantize_group<TW_BF16>)
                        : quantize_rows(a, quantize_group<TW_F32>);
}

extern "C" void tw_quantize_weights_avx2(const tw_quantize_weights_args* a) {
  quantize_weights<WeightsAvx2>(a);
}
