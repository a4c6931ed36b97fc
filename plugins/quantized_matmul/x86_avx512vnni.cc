// quantized_matmul for AVX-512 with VNNI. Same bits as scalar.cc.
//
//   for each unit of 4 panels, for each chunk of rows, for each block of groups:
//     for each R <= 6 rows of the chunk, for each group:
//       R x 4 exact sums in registers, then scaled and added to R x 4 float sums in the L1 cache
//   then bias, activation, residual and rounding for the chunk
//
// vpdpbusd multiplies unsigned by signed. Nibbles are unsigned as stored (w + 8); bytes become so by flipping
// their sign bit (w + 128). What this adds to a sum is known beforehand, 8 or 128 times the sum of x, and
// taken off the start.
#include <string.h>

#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/quantized_matmul/kernel.h"

namespace {

constexpr int64_t kRows = 6;    // rows of a micro kernel at most: with 4 panels 29 of 32 registers
constexpr int64_t kChunk = 96;  // rows
constexpr int64_t kAheadBytes = 128 << 10;  // of a unit's weights whose next unit is fetched ahead
constexpr int64_t kBlockBytes = 512 << 10;  // of a unit's weights: half the L2 cache

// One group of K for R rows and P panels.
struct Group {
  const int8_t* x;  // first row
  int64_t x_stride;
  const float* x_scale;  // of the first row
  const int32_t* x_sum;
  int64_t group_stride;
  const char* w;  // first panel
  const char* scales;
  int64_t w_stride;  // bytes between panels
  int64_t ahead;     // bytes to the same group of the next unit, which is fetched meanwhile
  int64_t steps;     // 64-byte lines of a panel
  float* sum;        // [R, kUnit, 16]
};

// Row r is at x[r / 3] + r % 3 * stride, panel p at w[p / 3] + p % 3 * stride: forms that x86 addresses
// directly.
struct Cursor {
  const int8_t* x[2];
  const char* w[2];
};

// What 64 bytes of a panel hold: for nibbles, the low or the high half of each byte.
template <int kBits, bool kHigh>
inline __attribute__((always_inline)) __m512i unsigned_weights(const char* w) {
  const __m512i bytes = _mm512_loadu_si512(w);
  if (kBits == 8) return _mm512_xor_si512(bytes, _mm512_set1_epi8((char)0x80));
  return _mm512_and_si512(kHigh ? _mm512_srli_epi32(bytes, 4) : bytes, _mm512_set1_epi8(15));
}

template <int kBits, bool kHigh, int R, int P>
inline __attribute__((always_inline)) void step(__m512i (&acc)[R][P], const Cursor& c, int64_t x_stride,
                                                int64_t w_stride) {
  __m512i w[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) w[p] = unsigned_weights<kBits, kHigh>(c.w[p / 3] + p % 3 * w_stride);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    int32_t bits;
    memcpy(&bits, c.x[r / 3] + r % 3 * x_stride + (kHigh ? 4 : 0), sizeof bits);
    const __m512i x = _mm512_set1_epi32(bits);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], x);
  }
}

template <int kBits, int R, int P>
inline __attribute__((always_inline)) void dot(__m512i (&acc)[R][P], const Group* g) {
  const int64_t x_stride = g->x_stride, w_stride = g->w_stride;
  Cursor c = {{g->x, g->x + 3 * x_stride}, {g->w, g->w + 3 * w_stride}};
  for (int64_t s = g->steps; s > 0; --s) {
    // A panel may be as short as two pages, which ends before the processor's own fetching ahead is under
    // way.
    const char* ahead = c.w[0] + g->ahead;
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) _mm_prefetch(ahead + p * w_stride, _MM_HINT_T1);
    step<kBits, false>(acc, c, x_stride, w_stride);
    if (kBits == 4) {
      __asm__("" : "+r"(c.w[0]), "+r"(c.w[1]));  // load again: there are no registers to keep the bytes in
      step<kBits, true>(acc, c, x_stride, w_stride);
    }
    // Sums that are not pinned here end up in memory: the compiler sees more values alive than registers.
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) __asm__("" : "+v"(acc[r][p]));
    }
    for (int i = 0; i < 2; ++i) c.x[i] += 32 / kBits, c.w[i] += 64;
    __asm__("" : "+r"(c.x[0]), "+r"(c.x[1]), "+r"(c.w[0]), "+r"(c.w[1]));
  }
}

template <int kBits, int R, int P>
inline __attribute__((always_inline)) void start(__m512i (&acc)[R][P], const Group* g) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512i excess = _mm512_set1_epi32(g->x_sum[r * g->group_stride] * (kBits == 4 ? -8 : -128));
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = excess;
  }
}

// A group with scales of its own: its sums join those of the groups before.
template <int kBitsOfWeight>
struct Grouped {
  static constexpr int kBits = kBitsOfWeight;

  template <int R, int P>
  static void run(const Group* g) {
    __m512i acc[R][P];
    start<kBits>(acc, g);
    dot<kBits>(acc, g);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const __m512 w_scale =
          tw_bf16_to_f32_avx512(_mm256_loadu_si256((const __m256i*)(g->scales + p * g->w_stride)));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* sum = g->sum + (r * kUnit + p) * kLanes;
        const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(g->x_scale[r * g->group_stride]), w_scale);
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][p]), scale, _mm512_loadu_ps(sum)));
      }
    }
  }
};

// The whole of K under one scale.
struct Whole {
  static constexpr int kBits = 8;

  template <int R, int P>
  static void run(const Group* g) {
    __m512i acc[R][P];
    start<kBits>(acc, g);
    dot<kBits>(acc, g);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const __m512 w_scale = _mm512_loadu_ps(g->scales + p * g->w_stride);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(g->x_scale[r * g->group_stride]), w_scale);
        _mm512_storeu_ps(g->sum + (r * kUnit + p) * kLanes,
                         _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][p]), scale));
      }
    }
  }
};

typedef void (*Micro)(const Group*);

template <class Kind, int P>
Micro micro_of(int64_t rows) {
  static const Micro table[kRows] = {Kind::template run<1, P>, Kind::template run<2, P>,
                                     Kind::template run<3, P>, Kind::template run<4, P>,
                                     Kind::template run<5, P>, Kind::template run<6, P>};
  return table[rows - 1];
}

template <class Kind>
Micro micro_for(int64_t rows, int64_t panels) {
  switch (panels) {
    case 1:
      return micro_of<Kind, 1>(rows);
    case 2:
      return micro_of<Kind, 2>(rows);
    case 3:
      return micro_of<Kind, 3>(rows);
    default:
      return micro_of<Kind, 4>(rows);
  }
}

// What is the same for all of a call.
struct Shape {
  int dtype;
  int64_t k, group, groups;
  int64_t size;  // elements of a group as stored
  int64_t w_stride;
  int64_t block;  // groups whose weights of a unit stay in the L2 cache
  int64_t chunk;  // rows
};

template <class Kind>
Shape shape_of(const tw_quantized_matmul_args* a) {
  Shape s;
  s.dtype = Kind::kBits == 4 ? TW_I4 : TW_I8;
  s.k = a->matmul.k;
  s.group = a->group;
  s.groups = tw_quantized_groups(s.k, s.group);
  s.size = tw_quantized_group(s.k, s.group);
  s.w_stride = tw_quantized_panel_bytes(s.dtype, s.k, s.group);
  s.block = s.groups;
  if (a->matmul.rows > kRows && s.w_stride * kUnit > kBlockBytes)
    s.block = ceil_div(s.groups, ceil_div(s.w_stride * kUnit, kBlockBytes));
  s.chunk = s.block < s.groups ? kChunk : kRows;
  return s;
}

// Adds groups [begin, end) for R rows from `row` and a unit of panels from `panel` to `sum`.
template <class Kind>
void sum_rows(const tw_quantized_matmul_args* a, const Shape& s, int64_t row, int64_t rows, int64_t panel,
              int64_t panels, int64_t begin, int64_t end, float* sum) {
  const char* w = (const char*)a->matmul.w + panel * s.w_stride;
  const Micro micro = micro_for<Kind>(rows, panels);
  Group g = {(const int8_t*)a->matmul.x + row * a->matmul.x_stride + begin * s.size,
             a->matmul.x_stride,
             a->x_scale + row * a->group_stride + begin,
             a->x_sum + row * a->group_stride + begin,
             a->group_stride,
             nullptr,
             nullptr,
             s.w_stride,
             s.w_stride * kUnit > kAheadBytes ? 0 : s.w_stride * kUnit,
             s.size * Kind::kBits / 32,
             sum};
  for (int64_t i = begin; i < end; ++i) {
    g.w = w + tw_quantized_group_offset(s.dtype, s.k, s.group, i);
    g.scales = w + tw_quantized_scale_offset(s.dtype, s.k, s.group, i);
    micro(&g);
    g.x += s.size, ++g.x_scale, ++g.x_sum;
  }
}

template <class Kind>
void matmul(const tw_quantized_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const Shape s = shape_of<Kind>(args);
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows; row += s.chunk) {
      const int64_t rows = at_most(s.chunk, a->rows - row);
      memset(sum, 0, (size_t)(rows * kUnit * kLanes) * sizeof *sum);
      for (int64_t begin = 0; begin < s.groups; begin += s.block) {
        const int64_t end = at_most(s.groups, begin + s.block), passes = ceil_div(rows, kRows);
        for (int64_t pass = 0; pass < passes; ++pass) {
          const int64_t first = rows * pass / passes, last = rows * (pass + 1) / passes;
          sum_rows<Kind>(args, s, row + first, last - first, panel, panels, begin, end,
                         sum + first * kUnit * kLanes);
        }
      }
      finish_for(a, panels)(a, row, rows, panel, sum);
    }
  }
}

}  // namespace

extern "C" void tw_quantized_matmul_i8_avx512vnni(const tw_quantized_matmul_args* a) {
  a->group == 0 ? matmul<Whole>(a) : matmul<Grouped<8>>(a);
}

extern "C" void tw_quantized_matmul_i4_avx512vnni(const tw_quantized_matmul_args* a) {
  matmul<Grouped<4>>(a);
}
