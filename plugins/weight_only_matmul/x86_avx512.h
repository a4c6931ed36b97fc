// weight_only_matmul for AVX-512. `Dot` is one of matmul/x86_avx512_dot.h, kOf the type of x, to which
// weights are decoded.
//
// Few rows are multiplied as vector_few.h says. For more rows the weights of a part of K are decoded to
// memory, and the micro kernel is like that of a plain product.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_

#include "plugins/matmul/x86_avx512_dot.h"
#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/weight_only_matmul/vector_few.h"
#include "plugins/weight_only_matmul/x86_avx512_numbers.h"

namespace {

// Returns 4 bytes of x, of which only the first `bytes` are read, in every lane.
TW_INLINE __m512i all_of(const char* x, int64_t bytes) {
  if (bytes >= 4) {
    int32_t bits;
    memcpy(&bits, x, 4);
    return _mm512_set1_epi32(bits);
  }
  uint16_t half;
  memcpy(&half, x, 2);
  return _mm512_set1_epi32(half);
}

// `Few` of vector_few.h for AVX-512, without at().
template <class Dot, int kOfWeights, int kBytesOfX>
struct FewOf {
  using Isa = Avx512;
  template <int R>
  static constexpr int kPanels = kUnit;
  static constexpr int kOf = kOfWeights, kBytes = kBytesOfX;
  static TW_INLINE __m512 step(__m512 sum, __m512i x, __m512i w) { return Dot::step(sum, x, w); }

  static TW_INLINE __m512 scales(const Packed& p, const char* from, int) {
    const __m256i halves = _mm256_loadu_si256((const __m256i*)from);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(halves));
    switch (p.group == 0 ? TW_SCALES_F32 : p.codec.scales) {
      case TW_SCALES_F32:
        return _mm512_loadu_ps(from);
      case TW_SCALES_F16:
        return _mm512_cvtph_ps(halves);
      case TW_SCALES_E8M0:
        return _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 23));
      default:
        return tw_bf16_to_f32_avx512(halves);
    }
  }
};

struct FewFloats : FewOf<F32, TW_F32, 4> {
  static TW_INLINE __m512i at(const char* x, int j, int64_t left) { return all_of(x + j * 4, left - j * 4); }
};
struct FewWidened : FewOf<F32, TW_F32, 2> {
  static TW_INLINE __m512i at(const char* x, int j, int64_t left) {
    const __m512i pair = all_of(x + j / 2 * 4, left - j / 2 * 4);
    return j % 2 ? high_halves(pair) : low_halves(pair);
  }
};
#ifdef __AVX512BF16__
struct FewPairs : FewOf<DotBf16, TW_BF16, 2> {
  static TW_INLINE __m512i at(const char* x, int j, int64_t left) { return all_of(x + j * 4, left - j * 4); }
};
#endif

// One call of a micro kernel.
struct Tile {
  const char* x;        // first row, at the part's first K
  int64_t x_stride;     // bytes
  const char* w;        // first panel, decoded
  int64_t w_stride;     // bytes between panels
  int64_t groups;       // whole 4-byte groups of K
  bool tail;            // there is one more group, of which x has only the first half
  int64_t spans, span;  // groups of weights with a scale, and 4-byte groups of each
  const float* scale;   // [spans, kUnit, 16]
  float* sum;           // [rows, kUnit, 16]
};

// kWhole: of whole rows, whose sums go on in every part and are scaled after the last. Otherwise the sums of
// a group begin at zero, and are scaled and added to those of the row, which stay in registers too.
template <class Dot, bool kWhole, int R, int P>
void micro(const Tile* t) {
  const int64_t x_stride = t->x_stride, w_stride = t->w_stride;
  Cursor c = {{t->x, t->x + 3 * x_stride}, {t->w, t->w + 3 * w_stride}};
  const float* scale = t->scale;
  __m512 sum[R][P];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int p = 0; p < P; ++p) sum[r][p] = _mm512_loadu_ps(t->sum + (r * kUnit + p) * kLanes);
  }
  int64_t left = t->groups;
  for (int64_t s = t->spans; s > 0; --s, scale += kUnit * kLanes) {
    __m512 dot[R][P];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p) dot[r][p] = kWhole ? sum[r][p] : _mm512_setzero_ps();
    }
    const int64_t groups = at_most(left, t->span);
    left -= groups;
    for (int64_t g = groups; g > 0; --g) {
      step<Dot, R, P>(dot, c, x_stride, w_stride, 4);
      advance(&c);
    }
    if (s == 1 && t->tail) step<Dot, R, P>(dot, c, x_stride, w_stride, 2);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int p = 0; p < P; ++p)
        sum[r][p] =
            kWhole ? dot[r][p] : _mm512_fmadd_ps(dot[r][p], _mm512_loadu_ps(scale + p * kLanes), sum[r][p]);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int p = 0; p < P; ++p) _mm512_storeu_ps(t->sum + (r * kUnit + p) * kLanes, sum[r][p]);
  }
}

typedef void (*Micro)(const Tile*);

#define TW_MICROS(W, P)                                           \
  {micro<Dot, W, 1, P>, micro<Dot, W, 2, P>, micro<Dot, W, 3, P>, \
   micro<Dot, W, 4, P>, micro<Dot, W, 5, P>, micro<Dot, W, 6, P>}
template <class Dot>
Micro micro_for(bool whole, int64_t rows, int64_t panels) {
  static const Micro of_groups[2][kRows] = {TW_MICROS(false, 1), TW_MICROS(false, 2)};
  static const Micro of_whole[kUnit][kRows] = {TW_MICROS(true, 1), TW_MICROS(true, 2), TW_MICROS(true, 3),
                                               TW_MICROS(true, 4)};
  return whole ? of_whole[panels - 1][rows - 1] : of_groups[panels - 1][rows - 1];
}
#undef TW_MICROS

template <class Dot, class Few, int kOf>
struct Avx512Set {
  static constexpr int kDtype = kOf;
  static constexpr int64_t kRowsAtOnce = Dot::kRowsAtOnce;

  static void decode(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
    for_form(p.codec, [&](auto form) {
      using Codec = Numbers<decltype(form)>;
      const auto z = Codec::zeros(zeros, 0);
      for (int64_t k = 0; k < count; k += 4 * Codec::kPlanes, from += Codec::kBytes) {
        TW_UNROLL
        for (int s = 0; s < Codec::kPlanes; ++s) {
          const Four<kOf> four = Codec::template four<kOf>(from, 0, s, z);
          TW_UNROLL
          for (int j = 0; j < four.kCount; ++j, to += 64) _mm512_store_si512(to, four.n[j]);
        }
      }
    });
  }

  static void scales(const Packed& p, const char* from, float* to) {
    _mm512_store_ps(to, Few::scales(p, from, 0));
  }

  static void sum_few(const tw_matmul_args* a, const Packed& p, const char* w, int64_t panels, int64_t row,
                      int64_t rows, bool last, float* sum) {
    ::sum_few<Few, Numbers>(a, p, w, panels, row, rows, last, sum);
  }

  // Groups have sums of their own in registers.
  static int64_t panels_at_once(const Part& part) { return part.whole ? kUnit : 2; }

  static void sum(const tw_matmul_args* a, const Part& part, const Decoded<kOf>& w, int64_t panel,
                  int64_t panels, int64_t row, int64_t rows, float* sum) {
    constexpr int64_t bytes = Decoded<kOf>::kBytes;
    const int64_t depth = (part.end - part.begin) * bytes;
    const Tile t = {(const char*)a->x + (row * a->x_stride + part.begin) * bytes,
                    a->x_stride * bytes,
                    w.w + panel * Decoded<kOf>::kStride,
                    Decoded<kOf>::kStride,
                    depth / 4,
                    depth % 4 != 0,
                    part.spans,
                    part.span * bytes / 4,
                    w.scale + panel * kLanes,
                    sum + panel * kLanes};
    micro_for<Dot>(part.whole, rows, panels)(&t);
  }

  static void finish(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     const float* sum) {
    finish_for(a, panels)(a, row, rows, panel, sum);
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_
