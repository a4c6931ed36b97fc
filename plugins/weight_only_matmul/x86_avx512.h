// weight_only_matmul for AVX-512. `Dot` is one of matmul/x86_avx512_dot.h, kOf the type of x, to which
// weights are decoded.
//
// Every number without its scale is exact in bfloat16, so all of them are decoded to pairs (k, k + 1) of
// bfloat16 in 32-bit lanes, a row in each lane. For a float x the pairs are widened.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_

#include "plugins/matmul/x86_avx512_dot.h"
#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/weight_only_matmul/x86.h"

namespace {

// Where decoded pairs go.
template <int kOf>
struct Out {
  char* to;

  TW_INLINE void put(__m512i pairs) {
    if (kOf == TW_BF16) {
      _mm512_store_si512(to, pairs);
      to += 64;
    } else {
      _mm512_store_si512(to, _mm512_slli_epi32(pairs, 16));
      _mm512_store_si512(to + 64, _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
      to += 128;
    }
  }
};

// Returns pairs of bfloat16, which hold these whole numbers exactly.
TW_INLINE __m512i pairs_of(__m512i even, __m512i odd) {
  const __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(even));
  const __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
  // (low >> 16) | (high & 0xffff0000)
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, _mm512_set1_epi32((int)0xffff0000u),
                                   0xf8);
}

// Returns the pairs (even.low, odd.low) and (even.high, odd.high) of words of 16 bits.
TW_INLINE __m512i low_words(__m512i even, __m512i odd) {
  return _mm512_ternarylogic_epi32(_mm512_slli_epi32(odd, 16), even, _mm512_set1_epi32(0xffff), 0xf8);
}
TW_INLINE __m512i high_words(__m512i even, __m512i odd) {
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, _mm512_set1_epi32((int)0xffff0000u),
                                   0xf8);
}

// Decodes a line of signed bytes, 4 elements of 16 rows, less `zero`.
template <int kOf>
TW_INLINE void put_bytes(__m512i line, __m512i zero, Out<kOf>* out) {
  const __m512i k0 = _mm512_srai_epi32(_mm512_slli_epi32(line, 24), 24);
  const __m512i k1 = _mm512_srai_epi32(_mm512_slli_epi32(line, 16), 24);
  const __m512i k2 = _mm512_srai_epi32(_mm512_slli_epi32(line, 8), 24);
  const __m512i k3 = _mm512_srai_epi32(line, 24);
  out->put(pairs_of(_mm512_sub_epi32(k0, zero), _mm512_sub_epi32(k1, zero)));
  out->put(pairs_of(_mm512_sub_epi32(k2, zero), _mm512_sub_epi32(k3, zero)));
}

TW_INLINE __m512i zeros_of(const char* zeros) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)zeros));
}

template <int kOf>
void decode_bytes(const char* from, int64_t count, __m512i zero, Out<kOf> out) {
  for (const char* end = from + count * TW_LANES; from < end; from += 64)
    put_bytes(_mm512_loadu_si512(from), zero, &out);
}

// Decodes lines of codes of 2 or 4 bits less `zero`, in [0, 15]; the differences fit a byte. kUpper: whether
// the upper bits of 32 codes follow every two lines, as 3 bits have them.
template <int kOf, int kBits, bool kUpper>
void decode_lines(const char* from, int64_t count, __m512i zero, Out<kOf> out) {
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1), one = _mm512_set1_epi8(4);
  const __m512i each = _mm512_mullo_epi32(zero, _mm512_set1_epi32(0x01010101));
  for (int64_t k = 0; k < count; k += 32) {
    for (int64_t n = 0; n < kBits; ++n) {
      const __m512i line = _mm512_loadu_si512(from + n * 64);
      TW_UNROLL
      for (int s = 0; s < 8 / kBits; ++s) {
        __m512i code = _mm512_and_si512(_mm512_srli_epi16(line, (unsigned)(s * kBits)), mask);
        if (kUpper) {
          const __m512i upper = _mm512_loadu_si512(from + 128);
          const int at = (int)n * 4 + s - 2;  // an upper bit counts 4
          const __m512i moved =
              at < 0 ? _mm512_slli_epi16(upper, (unsigned)-at) : _mm512_srli_epi16(upper, (unsigned)at);
          code = _mm512_or_si512(code, _mm512_and_si512(moved, one));
        }
        put_bytes(_mm512_sub_epi8(code, each), _mm512_setzero_si512(), &out);
      }
    }
    from += kUpper ? 192 : kBits * 64;
  }
}

template <int kOf>
void decode_codes(int bits, const char* from, int64_t count, __m512i zero, Out<kOf> out) {
  if (bits == 4) return decode_lines<kOf, 4, false>(from, count, zero, out);
  if (bits == 3) return decode_lines<kOf, 2, true>(from, count, zero, out);
  decode_lines<kOf, 2, false>(from, count, zero, out);
}

// Decodes nibbles by a table of their numbers in bfloat16, which is there twice: an index has 5 bits, of
// which the highest is not of the nibble.
template <int kOf>
void decode_nibbles(const char* from, int64_t count, const uint16_t* table, Out<kOf> out) {
  const __m256i once = _mm256_loadu_si256((const __m256i*)table);
  const __m512i twice = _mm512_inserti64x4(_mm512_castsi256_si512(once), once, 1);
  for (const char* end = from + count * TW_LANES / 2; from < end; from += 64) {
    const __m512i line = _mm512_loadu_si512(from);
    const __m512i k02 = _mm512_permutexvar_epi16(line, twice);
    const __m512i k46 = _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 4), twice);
    const __m512i k13 = _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 8), twice);
    const __m512i k57 = _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 12), twice);
    out.put(low_words(k02, k13));
    out.put(high_words(k02, k13));
    out.put(low_words(k46, k57));
    out.put(high_words(k46, k57));
  }
}

// Turns codes of E4M3, sign-extended to 16 bits, into bfloat16. The bias of the exponent is larger by 120.
// Numbers below the least normal one are taken from a table.
TW_INLINE __m512i e4m3_words(__m512i code, __m512i small) {
  const __m512i size = _mm512_and_si512(_mm512_slli_epi16(code, 4), _mm512_set1_epi16(0x7f0));
  const __mmask32 is_small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
  const __m512i normal = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
  const __m512i number = _mm512_mask_permutexvar_epi16(normal, is_small, code, small);
  return _mm512_ternarylogic_epi32(number, code, _mm512_set1_epi16((short)0x8000), 0xf8);
}

template <int kOf>
void decode_e4m3(const char* from, int64_t count, Out<kOf> out) {
  // Multiples of 2^-9.
  const __m512i small =
      _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  for (const char* end = from + count * TW_LANES; from < end; from += 64) {
    const __m512i line = _mm512_loadu_si512(from);
    const __m512i k02 = e4m3_words(_mm512_srai_epi16(_mm512_slli_epi16(line, 8), 8), small);
    const __m512i k13 = e4m3_words(_mm512_srai_epi16(line, 8), small);
    out.put(low_words(k02, k13));
    out.put(high_words(k02, k13));
  }
}

// bfloat16 of the nibbles of int4, less 8, and of twice E2M1.
constexpr uint16_t kInt4[16] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
constexpr uint16_t kE2m1[16] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40c0, 0x4100, 0x4140,
                                0x0000, 0xbf80, 0xc000, 0xc040, 0xc080, 0xc0c0, 0xc100, 0xc140};

// One call of a micro kernel.
struct Tile {
  const char* x;        // first row, at the part's first K
  int64_t x_stride;     // bytes
  const char* w;        // first panel, decoded
  int64_t w_stride;     // bytes between panels
  int64_t groups;       // whole 4-byte groups of K
  bool tail;            // there is one more group, of which x has only the first half
  int64_t spans, span;  // groups of weights with a scale, and 4-byte groups of each
  bool whole;           // of whole rows, whose sums are scaled after the last part
  const float* scale;   // [spans, kUnit, 16]
  float* sum;           // [rows, kUnit, 16]
};

template <class Dot, int R, int P>
void micro(const Tile* t) {
  const int64_t x_stride = t->x_stride, w_stride = t->w_stride;
  Cursor c = {{t->x, t->x + 3 * x_stride}, {t->w, t->w + 3 * w_stride}};
  const float* scale = t->scale;
  int64_t left = t->groups;
  for (int64_t s = t->spans; s > 0; --s, scale += kUnit * kLanes) {
    __m512 acc[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        acc[r][p] = t->whole ? _mm512_loadu_ps(t->sum + (r * kUnit + p) * kLanes) : _mm512_setzero_ps();
      }
    }
    const int64_t groups = at_most(left, t->span);
    left -= groups;
    for (int64_t g = groups; g > 0; --g) {
      step<Dot, R, P>(acc, c, x_stride, w_stride, 4);
      advance(&c);
    }
    if (s == 1 && t->tail) step<Dot, R, P>(acc, c, x_stride, w_stride, 2);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        float* sum = t->sum + (r * kUnit + p) * kLanes;
        const __m512 scaled =
            t->whole ? acc[r][p]
                     : _mm512_fmadd_ps(acc[r][p], _mm512_loadu_ps(scale + p * kLanes), _mm512_loadu_ps(sum));
        _mm512_storeu_ps(sum, scaled);
      }
    }
  }
}

typedef void (*Micro)(const Tile*);

#define TW_MICROS(P) \
  {micro<Dot, 1, P>, micro<Dot, 2, P>, micro<Dot, 3, P>, micro<Dot, 4, P>, micro<Dot, 5, P>, micro<Dot, 6, P>}
template <class Dot>
Micro micro_for(int64_t rows, int64_t panels) {
  static const Micro table[kUnit][kRows] = {TW_MICROS(1), TW_MICROS(2), TW_MICROS(3), TW_MICROS(4)};
  return table[panels - 1][rows - 1];
}
#undef TW_MICROS

template <class Dot, int kOf>
struct Avx512Set {
  static constexpr int kDtype = kOf;
  static constexpr int64_t kRowsAtOnce = Dot::kRowsAtOnce;

  static void decode(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
    const Out<kOf> out = {to};
    const bool has_zeros = p.codec.zeros != 0;
    switch (p.codec.values) {
      case TW_BYTES:
        return decode_bytes(from, count, has_zeros ? zeros_of(zeros) : _mm512_setzero_si512(), out);
      case TW_CODES:
        if (p.codec.bits == 4 && !has_zeros) return decode_nibbles(from, count, kInt4, out);
        return decode_codes(p.codec.bits, from, count,
                            has_zeros ? zeros_of(zeros) : _mm512_set1_epi32(half_range(p)), out);
      case TW_E2M1:
        return decode_nibbles(from, count, kE2m1, out);
      case TW_E4M3:
        return decode_e4m3(from, count, out);
      default:
        return decode_numbers<kOf>(p, from, zeros, count, to);
    }
  }

  static void scales(const Packed& p, const char* from, float* to) {
    const __m256i halves = _mm256_loadu_si256((const __m256i*)from);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(halves));
    switch (p.group == 0 ? TW_SCALES_F32 : p.codec.scales) {
      case TW_SCALES_F32:
        return _mm512_store_ps(to, _mm512_loadu_ps(from));
      case TW_SCALES_F16:
        return _mm512_store_ps(to, _mm512_cvtph_ps(halves));
      case TW_SCALES_E8M0:
        return _mm512_store_si512(to, _mm512_slli_epi32(bytes, 23));
      default:
        return _mm512_store_ps(to, tw_bf16_to_f32_avx512(halves));
    }
  }

  static void sum(const tw_matmul_args* a, const Part& part, const Decoded<kOf>& w, int64_t panels,
                  int64_t row, int64_t rows, float* sum) {
    constexpr int64_t bytes = Decoded<kOf>::kBytes;
    const int64_t depth = (part.end - part.begin) * bytes;
    const Tile t = {(const char*)a->x + (row * a->x_stride + part.begin) * bytes,
                    a->x_stride * bytes,
                    w.w,
                    Decoded<kOf>::kStride,
                    depth / 4,
                    depth % 4 != 0,
                    part.spans,
                    part.span * bytes / 4,
                    part.whole,
                    w.scale,
                    sum};
    micro_for<Dot>(rows, panels)(&t);
  }

  static void finish(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                     const float* sum) {
    finish_for(a, panels)(a, row, rows, panel, sum);
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_H_
