// quantized_matmul in registers of 256 bits, shared by AVX2 and AVX-VNNI. A panel takes two of the 16
// registers, so 6 rows and 1 panel, or 1 row and 4 panels, fill them.
//
// The instruction set defines `Dot`: kDtype of the weights, kUnsigned if they are made unsigned by an
// addition, and
//   dot(acc, group), which adds the sums of a group to acc; acc starts at what cancels the addition.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/matmul/vector_finish.h"
#include "plugins/quantized_matmul/cut.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Row r is at x[r / 3] + r % 3 * stride, and panel p at w[p / 3] + p % 3 * stride, because x86 addresses
// these forms directly.
struct Cursor {
  const int8_t* x[2];
  const char* w[2];
};

// Returns four elements of row r in each of 8 lanes.
TW_INLINE __m256i elements(const Cursor& c, int64_t x_stride, int r, int at) {
  int32_t bits;
  memcpy(&bits, c.x[r / 3] + r % 3 * x_stride + at, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// Returns the i-th half of a line of weights, which is of panel i / 2. line: counted from the cursor on.
TW_INLINE __m256i weights(const Cursor& c, int64_t w_stride, int i, int line = 0) {
  return _mm256_loadu_si256((const __m256i*)(c.w[i / 6] + i / 2 % 3 * w_stride + line * 64 + i % 2 * 32));
}

// Returns the unsigned weights of a step of a block, of 4 bits and fewer: as they are stored, or for E2M1
// twice the number plus 12. i: as for weights().
template <int kDtype, int kStep>
TW_INLINE __m256i unsigned_weights(const Cursor& c, int64_t w_stride, int i) {
  constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  if constexpr (kCodec.bits == 3) {
    const __m256i low = _mm256_srli_epi32(weights(c, w_stride, i, kStep / 4), kStep % 4 * 2);
    const __m256i line = weights(c, w_stride, i, 2);
    const __m256i upper = kStep < 2 ? _mm256_slli_epi32(line, 2 - kStep) : _mm256_srli_epi32(line, kStep - 2);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(3)),
                           _mm256_and_si256(upper, _mm256_set1_epi8(4)));
  } else {
    const __m256i bytes = _mm256_srli_epi32(weights(c, w_stride, i), kStep * kCodec.bits);
    const __m256i codes = _mm256_and_si256(bytes, _mm256_set1_epi8((1 << kCodec.bits) - 1));
    if (kCodec.values != TW_E2M1) return codes;
    const __m128i raised = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(raised), codes);
  }
}

TW_INLINE Cursor cursor_of(const Group* g) {
  return {{g->x, g->x + 3 * g->x_stride}, {g->w, g->w + 3 * g->w_stride}};
}

TW_INLINE void advance(Cursor& c, int64_t elements, int64_t bytes) {
  for (int i = 0; i < 2; ++i) c.x[i] += elements, c.w[i] += bytes;
  __asm__("" : "+r"(c.x[0]), "+r"(c.x[1]), "+r"(c.w[0]), "+r"(c.w[1]));
}

// Makes the compiler load the weights again, because no registers are free to keep them.
TW_INLINE void forget(Cursor& c) { __asm__("" : "+r"(c.w[0]), "+r"(c.w[1])); }

// Sums that are not pinned in the loop over K go to memory, because the compiler sees more live values than
// registers.
template <int R, int N>
TW_INLINE void pin(__m256i (&acc)[R][N]) {
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < N; ++i) __asm__("" : "+x"(acc[r][i]));
  }
}

// Computes acc[r][i] = add(acc[r][i], x(r), w(i)). The more numerous of rows and vectors is read one at a
// time.
template <int R, int N, typename X, typename W, typename Add>
TW_INLINE void multiply(__m256i (&acc)[R][N], X x, W w, Add add) {
  if constexpr (N > R) {
    __m256i row[R];
    TW_UNROLL
    for (int r = 0; r < R; ++r) row[r] = x(r);
    TW_UNROLL
    for (int i = 0; i < N; ++i) {
      const __m256i value = w(i);
      TW_UNROLL
      for (int r = 0; r < R; ++r) acc[r][i] = add(acc[r][i], row[r], value);
    }
  } else {
    __m256i value[N];
    TW_UNROLL
    for (int i = 0; i < N; ++i) value[i] = w(i);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i row = x(r);
      TW_UNROLL
      for (int i = 0; i < N; ++i) acc[r][i] = add(acc[r][i], row, value[i]);
    }
  }
}

// Adds the products of the steps of a block from kStep on, for weights of 4 bits and fewer, and moves the
// cursor behind the block.
template <int kDtype, int kStep, int R, int N, typename Add>
TW_INLINE void add_steps(__m256i (&acc)[R][N], Cursor& c, const Group* g, Add add) {
  multiply(
      acc, [&](int r) TW_ALWAYS { return elements(c, g->x_stride, r, kStep * 4); },
      [&](int i) TW_ALWAYS { return unsigned_weights<kDtype, kStep>(c, g->w_stride, i); }, add);
  pin(acc);
  if constexpr (kStep + 1 < tw_block_steps(kDtype)) {
    forget(c);
    add_steps<kDtype, kStep + 1>(acc, c, g, add);
  } else {
    advance(c, tw_block_steps(kDtype) * 4, tw_block_lines(kDtype) * 64);
  }
}

// Lets the sums start at x_sum or, if there are zero points, at these times x_sum. A sum of a group fits 16
// bits, and the upper half of a zero point is multiplied by 0.
template <class Dot, int R, int N>
TW_INLINE void start(__m256i (&acc)[R][N], const Group* g) {
  constexpr tw_weight_codec kCodec = tw_codec(Dot::kDtype);
  TW_UNROLL
  for (int i = 0; i < N; ++i) {
    __m256i zero = _mm256_setzero_si256();
    if constexpr (kCodec.zeros != 0) {
      zero =
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(g->zeros + i / 2 * g->w_stride + i % 2 * 8)));
      if (kCodec.bits == 8 && Dot::kUnsigned) zero = _mm256_add_epi32(zero, _mm256_set1_epi32(128));
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      acc[r][i] = kCodec.zeros != 0 ? _mm256_madd_epi16(zero, _mm256_set1_epi32(g->x_sum[r] & 0xffff))
                                    : _mm256_set1_epi32(Dot::kUnsigned ? g->x_sum[r] : 0);
    }
  }
}

// Returns the scales of 8 rows of a group.
template <int kDtype>
TW_INLINE __m256 group_scales(const char* scales) {
  if (tw_codec(kDtype).scales == TW_SCALES_E8M0) {
    const __m128i exponents = _mm_loadl_epi64((const __m128i*)scales);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(exponents), 23));
  }
  if (tw_codec(kDtype).scales == TW_SCALES_F16)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)scales));
  return tw_bf16_to_f32_avx2(_mm_loadu_si128((const __m128i*)scales));
}

// Computes a group with scales of its own, and adds its sums to those of the groups before.
template <class Dot, int R, int P>
void grouped(const Group* g) {
  __m256i acc[R][2 * P];
  start<Dot>(acc, g);
  Dot::dot(acc, g);
  TW_UNROLL
  for (int i = 0; i < 2 * P; ++i) {
    const __m256 w_scale = group_scales<Dot::kDtype>(g->scales + i / 2 * g->w_stride +
                                                     i % 2 * 8 * tw_codec(Dot::kDtype).scale_bytes);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      float* sum = g->sum + r * kUnit * kLanes + i * 8;
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(g->x_scale[r]), w_scale);
      _mm256_storeu_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r][i]), scale, _mm256_loadu_ps(sum)));
    }
  }
}

// Computes whole rows, where all of K has one scale.
template <class Dot, int R, int P>
void whole(const Group* g) {
  __m256i acc[R][2 * P];
  start<Dot>(acc, g);
  Dot::dot(acc, g);
  TW_UNROLL
  for (int i = 0; i < 2 * P; ++i) {
    const __m256 w_scale = _mm256_loadu_ps((const float*)(g->scales + i / 2 * g->w_stride + i % 2 * 32));
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(g->x_scale[r]), w_scale);
      _mm256_storeu_ps(g->sum + r * kUnit * kLanes + i * 8,
                       _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][i]), scale));
    }
  }
}

typedef void (*Micro)(const Group*);

template <class Dot, bool kWhole, int R, int P>
constexpr Micro micro_of() {
  return kWhole ? whole<Dot, R, P> : grouped<Dot, R, P>;
}

// The `Kind` of cut.h.
template <class Dot, bool kWhole = false>
struct Kernels {
  static constexpr int kDtype = Dot::kDtype;

  static int64_t panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  static Micro micro(int64_t rows, int64_t panels) {
    static const Micro one[kRows] = {micro_of<Dot, kWhole, 1, 1>(), micro_of<Dot, kWhole, 2, 1>(),
                                     micro_of<Dot, kWhole, 3, 1>(), micro_of<Dot, kWhole, 4, 1>(),
                                     micro_of<Dot, kWhole, 5, 1>(), micro_of<Dot, kWhole, 6, 1>()};
    static const Micro two[2] = {micro_of<Dot, kWhole, 1, 2>(), micro_of<Dot, kWhole, 2, 2>()};
    if (panels == 1) return one[rows - 1];
    if (panels == 2) return two[rows - 1];
    return panels == 3 ? micro_of<Dot, kWhole, 1, 3>() : micro_of<Dot, kWhole, 1, 4>();
  }

  static void finish(const tw_quantized_matmul_args* a, int64_t row, int64_t rows, int64_t panel,
                     int64_t panels, const float* sum) {
    const tw_matmul_args args = a->matmul;  // a copy: y cannot alias it
    const FinishRow finish_row = finish_row_for<Avx2>(args.epilogue);
    for (int64_t r = 0; r < rows; ++r) finish_row(args, row + r, panel, panels, sum + r * kUnit * kLanes);
  }
};

// Computes a call. Bytes, Codes and Sparse: the `Dot` of weights of 8 bits, of fewer, and of 2:4 sparse ones.
template <template <int> class Bytes, template <int> class Codes, template <int> class Sparse, int kDtype>
void run(const tw_quantized_matmul_args* a) {
  if constexpr (tw_codec(kDtype).sparse) {
    matmul<Kernels<Sparse<kDtype>>>(a);
  } else if constexpr (tw_codec(kDtype).values != TW_BYTES) {
    matmul<Kernels<Codes<kDtype>>>(a);
  } else if constexpr (tw_quantizes(kDtype, 0)) {
    a->group == 0 ? matmul<Kernels<Bytes<kDtype>, true>>(a) : matmul<Kernels<Bytes<kDtype>>>(a);
  } else {
    matmul<Kernels<Bytes<kDtype>>>(a);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_H_
