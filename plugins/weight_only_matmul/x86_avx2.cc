// weight_only_matmul for AVX2, with the same bits as scalar.cc. Weights are decoded to floats, and so are the
// rows of x that a micro kernel reads.
//
// A panel takes two registers, so 6 rows and 1 panel, or 1 row and 4 panels, fill the 16 registers.
#include "plugins/matmul/x86_avx2_finish.h"
#include "plugins/weight_only_matmul/x86_avx2_numbers.h"
#include "plugins/weight_only_matmul/x86_few.h"

namespace {

constexpr int64_t kStride = kPart<TW_F32> + 16;  // floats between rows of x

// One call of a micro kernel.
struct Tile {
  const float* x;       // [R, kStride], the part's K
  const char* w;        // first panel, decoded
  int64_t depth;        // elements of K
  int64_t spans, span;  // groups of weights with a scale, and elements of each
  bool whole;           // of whole rows, whose sums are scaled after the last part
  const float* scale;   // [spans, kUnit, 16]
  float* sum;           // [R, kUnit, 16]
};

template <int R, int P>
void micro(const Tile* t) {
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

// Returns how many panels go through a micro kernel together.
constexpr int64_t panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

typedef void (*Micro)(const Tile*);

Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro one[kRows] = {micro<1, 1>, micro<2, 1>, micro<3, 1>,
                                   micro<4, 1>, micro<5, 1>, micro<6, 1>};
  static const Micro two[3] = {micro<1, 2>, micro<2, 2>, micro<3, 2>};
  if (panels == 1) return one[rows - 1];
  if (panels == 2) return two[rows - 1];
  return panels == 3 ? micro<1, 3> : micro<1, 4>;
}

// Converts `count` elements of one row of x to floats.
void widen(const void* x, int dtype, int64_t count, float* to) {
  for (int64_t k = 0; k < count; k += 8) {
    _mm256_storeu_ps(to + k, dtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)x + k, count - k)
                                              : tw_load_avx2((const float*)x + k, count - k));
  }
}

// `Few` of x86_few.h. The sums of more than two rows and one panel leave registers to decode in.
template <int kOfX>
struct Few {
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

template <int kOfX>
struct Avx2Set {
  static constexpr int kDtype = TW_F32;
  static constexpr int64_t kRowsAtOnce = kRows;

  static void sum_few(const tw_matmul_args* a, const Packed& p, const char* w, int64_t panels, int64_t row,
                      int64_t rows, bool last, float* sum) {
    ::sum_few<Few<kOfX>, Numbers>(a, p, w, panels, row, rows, last, sum);
  }

  static void decode(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
    for_form(p.codec, [&](auto form) {
      using Codec = Numbers<decltype(form)>;
      const typename Codec::Zeros z[2] = {Codec::zeros(zeros, 0), Codec::zeros(zeros, 1)};
      for (int64_t k = 0; k < count; k += 4 * Codec::kPlanes, from += Codec::kBytes) {
        TW_UNROLL
        for (int s = 0; s < Codec::kPlanes; ++s, to += 256) {
          TW_UNROLL
          for (int half = 0; half < 2; ++half) {
            const Four four = Codec::template four<TW_F32>(from, half, s, z[half]);
            TW_UNROLL
            for (int j = 0; j < 4; ++j) _mm256_store_ps((float*)(to + j * 64 + half * 32), four.n[j]);
          }
        }
      }
    });
  }

  static void scales(const Packed& p, const char* from, float* to) {
    _mm256_store_ps(to, Few<kOfX>::scales(p, from, 0));
    _mm256_store_ps(to + 8, Few<kOfX>::scales(p, from, 1));
  }

  static int64_t panels_at_once(const Part&) { return kUnit; }

  static void sum(const tw_matmul_args* a, const Part& part, const Decoded<TW_F32>& w, int64_t,
                  int64_t panels, int64_t row, int64_t rows, float* sum) {
    constexpr int64_t bytes = kOfX == TW_BF16 ? 2 : 4;
    const int64_t depth = part.end - part.begin;
    float x[kRows * kStride];
    for (int64_t r = 0; r < rows; ++r) {
      const char* from = (const char*)a->x + ((row + r) * a->x_stride + part.begin) * bytes;
      widen(from, kOfX, depth, x + r * kStride);
    }
    const int64_t at_once = ::panels_at_once(rows);
    for (int64_t p = 0; p < panels; p += at_once) {
      const Tile t = {x,
                      w.w + p * Decoded<TW_F32>::kStride,
                      depth,
                      part.spans,
                      part.span,
                      part.whole,
                      w.scale + p * kLanes,
                      sum + p * kLanes};
      micro_for(rows, at_most(at_once, panels - p))(&t);
    }
  }

  static void finish(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     const float* sum) {
    const FinishRow finish = finish_row_for(a->epilogue);
    for (int64_t r = 0; r < rows; ++r) finish(*a, row + r, panel, panels, sum + r * kUnit * kLanes);
  }
};

}  // namespace

extern "C" void tw_weight_only_matmul_f32_avx2(const tw_weight_only_matmul_args* a) {
  matmul<Avx2Set<TW_F32>>(a);
}
extern "C" void tw_weight_only_matmul_bf16_avx2(const tw_weight_only_matmul_args* a) {
  matmul<Avx2Set<TW_BF16>>(a);
}
