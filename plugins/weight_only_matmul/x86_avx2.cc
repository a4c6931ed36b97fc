// weight_only_matmul for AVX2, with the same bits as scalar.cc.
//
// A panel takes two registers, so 6 rows and 1 panel, or 1 row and 4 panels, fill the 16 registers.
#include "plugins/common/x86_avx2.h"

#include "plugins/weight_only_matmul/floats.h"
#include "plugins/weight_only_matmul/x86_avx2_numbers.h"

namespace {

// `Few` of vector_few.h. The sums of more than two rows and one panel leave registers to decode in.
template <int kOfX>
struct FewAvx2 {
  using Isa = Avx2;
  template <int R>
  static constexpr int kPanels = R <= 2 ? 2 : 1;
  static constexpr int kOf = TW_F32, kBytes = kOfX == TW_BF16 ? 2 : 4;

  static TW_INLINE __m256 at(const char* x, int j, int64_t) {
    if constexpr (kOfX == TW_F32) {
      return _mm256_broadcast_ss((const float*)x + j);
    } else {
      uint16_t half;
      memcpy(&half, x + j * 2, 2);
      return _mm256_castsi256_ps(_mm256_set1_epi32(half << 16));
    }
  }

  static TW_INLINE __m256 step(__m256 sum, __m256 x, __m256 w) { return _mm256_fmadd_ps(x, w, sum); }

  static TW_INLINE __m256 scales(const Packed& p, const char* from, int half) {
    const __m128i words = _mm_loadu_si128((const __m128i*)from + half);
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)(from + half * 8));
    switch (p.group == 0 ? TW_SCALES_F32 : p.codec.scales) {
      case TW_SCALES_F32:
        return _mm256_loadu_ps((const float*)from + half * 8);
      case TW_SCALES_F16:
        return _mm256_cvtph_ps(words);
      case TW_SCALES_E8M0:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23));
      default:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
  }
};

// The `Of` of floats.h.
struct Kernels {
  using Isa = Avx2;
  template <int kOfX>
  using Few = FewAvx2<kOfX>;
  template <class Form>
  using Numbers = ::Numbers<Form>;

  static TW_INLINE __m256 load(int dtype, const void* x, int64_t at, int64_t count) {
    return dtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)x + at, count)
                            : tw_load_avx2((const float*)x + at, count);
  }

  static constexpr int64_t panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

  template <int R, int P>
  static void micro(const Tile* t) {
    const float *x = t->x, *scale = t->scale;
    const char* w = t->w;
    int64_t left = t->depth;
    for (int64_t s = t->spans; s > 0; --s, scale += kUnit * kLanes) {
      __m256 acc[R][2 * P];
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < 2 * P; ++i) {
          acc[r][i] = t->whole ? _mm256_loadu_ps(t->sum + r * kUnit * kLanes + i * 8) : _mm256_setzero_ps();
        }
      }
      const int64_t steps = at_most(left, t->span);
      left -= steps;
      for (int64_t k = steps; k > 0; --k, ++x, w += 64) {
        tw_multiply_avx2(
            acc, [=](int r) TW_ALWAYS { return _mm256_broadcast_ss(x + r * kStride); },
            [=](int i) TW_ALWAYS {
              return _mm256_load_ps((const float*)(w + i / 2 * Decoded<TW_F32>::kStride) + i % 2 * 8);
            });
      }
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        TW_UNROLL
        for (int i = 0; i < 2 * P; ++i) {
          float* sum = t->sum + r * kUnit * kLanes + i * 8;
          const __m256 scaled =
              t->whole ? acc[r][i]
                       : _mm256_fmadd_ps(acc[r][i], _mm256_loadu_ps(scale + i * 8), _mm256_loadu_ps(sum));
          _mm256_storeu_ps(sum, scaled);
        }
      }
    }
  }
};

}  // namespace

extern "C" void tw_weight_only_matmul_f32_avx2(const tw_weight_only_matmul_args* a) {
  matmul<Floats<Kernels, TW_F32>>(a);
}
extern "C" void tw_weight_only_matmul_bf16_avx2(const tw_weight_only_matmul_args* a) {
  matmul<Floats<Kernels, TW_BF16>>(a);
}
