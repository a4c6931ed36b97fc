// How the AVX-512 kernels decode weights in registers, four elements of K of a panel's 16 rows at a time.
//
// Every number without its scale is exact in bfloat16. Beside bfloat16 the four elements are two vectors of
// pairs (k, k + 1), a row in each 32-bit lane; beside floats they are four vectors. Each codec is a struct:
//   kBits        of a weight
//   kPlanes      how many times four elements a block of kBytes bytes holds
//   Zeros        what it needs of the zero points of a group, zeros(...)
//   four<kOf>()  the four elements of one plane of a block
// The number of a part of a panel is for smaller registers and always 0.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_NUMBERS_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_NUMBERS_H_

#include "plugins/common/x86_avx512.h"
#include "plugins/weight_only_matmul/vector.h"

namespace {

// Four elements of 16 rows: pairs of bfloat16, or floats.
template <int kOf>
struct Four {
  static constexpr int kCount = kOf == TW_BF16 ? 2 : 4;
  __m512i n[kCount];
};

TW_INLINE __m512i low_halves(__m512i pairs) { return _mm512_slli_epi32(pairs, 16); }
TW_INLINE __m512i high_halves(__m512i pairs) {
  return _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u));
}

// Returns four elements that were decoded to pairs (0, 1) and (2, 3) of bfloat16.
template <int kOf>
TW_INLINE Four<kOf> four_of_pairs(__m512i first, __m512i second) {
  if constexpr (kOf == TW_BF16) {
    return {{first, second}};
  } else {
    return {{low_halves(first), high_halves(first), low_halves(second), high_halves(second)}};
  }
}

// Returns four elements that were decoded to floats.
template <int kOf>
TW_INLINE Four<kOf> four_of_floats(__m512 k0, __m512 k1, __m512 k2, __m512 k3) {
  const __m512i n0 = _mm512_castps_si512(k0), n1 = _mm512_castps_si512(k1);
  const __m512i n2 = _mm512_castps_si512(k2), n3 = _mm512_castps_si512(k3);
  if constexpr (kOf == TW_BF16) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    // The lower halves are 0. (even >> 16) | (odd & high)
    return {{_mm512_ternarylogic_epi32(_mm512_srli_epi32(n0, 16), n1, high, 0xf8),
             _mm512_ternarylogic_epi32(_mm512_srli_epi32(n2, 16), n3, high, 0xf8)}};
  } else {
    return {{n0, n1, n2, n3}};
  }
}

// What selects the bytes (0, 1) and (2, 3) of every 32-bit lane, each to both bytes of a word.
struct Selectors {
  __m512i first, second;
};
TW_INLINE Selectors selectors() {
  return {_mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13)),
          _mm512_broadcast_i32x4(_mm_setr_epi8(2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15))};
}

// Returns the zero points of 16 rows, each in the four bytes that its row has in a line.
TW_INLINE __m512i zero_bytes(const char* zeros) {
  const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)zeros)),
                             _mm512_mullo_epi32(row, _mm512_set1_epi32(0x01010101)));
}

// Signed bytes. A byte with its highest bit turned is u = byte + 128. Among the lowest bits of the mantissa
// of 2^23 it makes the float 2^23 + u, and 8 bits above them in 2^15 the float 2^15 + u. What is taken away
// again holds the zero point too.
template <bool kZeros>
struct Bytes {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {
    __m512 low, high;
  };

  static TW_INLINE Zeros zeros(const char* zeros, int) {
    __m512 zero = _mm512_setzero_ps();
    if constexpr (kZeros)
      zero = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)zeros)));
    return {_mm512_add_ps(zero, _mm512_set1_ps(0x1p23f + 128)),
            _mm512_add_ps(zero, _mm512_set1_ps(0x1p15f + 128))};
  }

  // Returns (bits & mask) ^ turned as floats.
  static TW_INLINE __m512 float_of(__m512i bits, uint32_t mask, uint32_t turned) {
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32((int)mask), _mm512_set1_epi32((int)turned), 0x6a));
  }

  template <int kOf>
  static TW_INLINE Four<kOf> four(const char* block, int, int, const Zeros& z) {
    const __m512i line = _mm512_loadu_si512(block), upper = _mm512_srli_epi32(line, 16);
    const __m512 k0 = _mm512_sub_ps(float_of(line, 0xff, 0x4b000080), z.low);
    const __m512 k1 = _mm512_sub_ps(float_of(line, 0xff00, 0x47008000), z.high);
    const __m512 k2 = _mm512_sub_ps(float_of(upper, 0xff, 0x4b000080), z.low);
    const __m512 k3 = _mm512_sub_ps(float_of(upper, 0xff00, 0x47008000), z.high);
    return four_of_floats<kOf>(k0, k1, k2, k3);
  }
};

// The numbers that a word stands for by its lowest 5 bits, in bfloat16.
struct Table {
  uint16_t n[32];
};

constexpr Table table_of_codes(int period, int less) {
  Table table = {};
  for (int i = 0; i < 32; ++i)
    table.n[i] = (uint16_t)(__builtin_bit_cast(uint32_t, (float)(i % period - less)) >> 16);
  return table;
}

// Twice the E2M1 numbers, twice.
constexpr Table kE2m1 = {{0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40c0, 0x4100, 0x4140,
                          0x0000, 0xbf80, 0xc000, 0xc040, 0xc080, 0xc0c0, 0xc100, 0xc140,
                          0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40c0, 0x4100, 0x4140,
                          0x0000, 0xbf80, 0xc000, 0xc040, 0xc080, 0xc0c0, 0xc100, 0xc140}};

// Codes of 4, 3 or 2 bits. Without zero points a table has the numbers of all that can stand in the lowest 5
// bits of a byte, so that the neighbours of a code need no mask. With zero points it is that of differences.
template <int kOfBits, bool kZeros, bool kDoubledE2m1 = false>
struct Codes {
  static constexpr int kBits = kOfBits;
  static constexpr int kPlanes = kBits == 4 ? 2 : kBits == 2 ? 4 : 8, kBytes = kBits == 3 ? 192 : 64;
  static constexpr Table kTable = kDoubledE2m1 ? kE2m1
                                  : kZeros     ? table_of_codes(32, 16)
                                               : table_of_codes(1 << kBits, 1 << (kBits - 1));
  struct Zeros {
    __m512i upwards;  // 16 less the zero point, in bytes
  };

  static TW_INLINE Zeros zeros(const char* zeros, int) {
    if constexpr (!kZeros) return {_mm512_setzero_si512()};
    return {_mm512_sub_epi8(_mm512_set1_epi8(16), zero_bytes(zeros))};
  }

  // Returns a byte for each code, of which only the lowest kBits matter.
  static TW_INLINE __m512i codes(const char* block, int plane) {
    if constexpr (kBits == 3) {
      const __m512i low = _mm512_srli_epi16(_mm512_loadu_si512(block + plane / 4 * 64), plane % 4 * 2);
      const __m512i upper = _mm512_loadu_si512(block + 128);  // a bit of it counts 4
      const __m512i moved =
          plane < 2 ? _mm512_slli_epi16(upper, 2 - plane) : _mm512_srli_epi16(upper, plane - 2);
      return _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, moved, 0xca);  // 3 ? low : moved
    } else {
      return _mm512_srli_epi16(_mm512_loadu_si512(block), plane * kBits);
    }
  }

  template <int kOf>
  static TW_INLINE Four<kOf> four(const char* block, int, int plane, const Zeros& z) {
    const Selectors s = selectors();
    const __m512i table = _mm512_loadu_si512(kTable.n);
    __m512i code = codes(block, plane);
    if constexpr (kZeros)
      code = _mm512_add_epi8(_mm512_and_si512(code, _mm512_set1_epi8((1 << kBits) - 1)), z.upwards);
    return four_of_pairs<kOf>(_mm512_permutexvar_epi16(_mm512_shuffle_epi8(code, s.first), table),
                              _mm512_permutexvar_epi16(_mm512_shuffle_epi8(code, s.second), table));
  }
};

// E4M3. The bias of bfloat16's exponent is larger by 120. Numbers below the least normal one, multiples of
// 2^-9, are taken from a table.
struct E4m3 {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {};

  static TW_INLINE Zeros zeros(const char*, int) { return {}; }

  // Turns codes that are in both bytes of a word into bfloat16.
  static TW_INLINE __m512i words(__m512i code) {
    const __m512i small =
        _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    const __m512i size = _mm512_and_si512(_mm512_srli_epi16(code, 4), _mm512_set1_epi16(0x7f0));
    const __m512i normal = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
    const __m512i number = _mm512_mask_permutexvar_epi16(normal, is_small, code, small);
    return _mm512_ternarylogic_epi32(number, code, _mm512_set1_epi16((short)0x8000), 0xf8);
  }

  template <int kOf>
  static TW_INLINE Four<kOf> four(const char* block, int, int, const Zeros&) {
    const Selectors s = selectors();
    const __m512i line = _mm512_loadu_si512(block);
    return four_of_pairs<kOf>(words(_mm512_shuffle_epi8(line, s.first)),
                              words(_mm512_shuffle_epi8(line, s.second)));
  }
};

// The codec of a Form.
template <class Of>
struct Numbers;
template <bool kZeros>
struct Numbers<Form<TW_BYTES, 8, kZeros>> : Bytes<kZeros> {};
template <int kBits, bool kZeros>
struct Numbers<Form<TW_CODES, kBits, kZeros>> : Codes<kBits, kZeros> {};
template <>
struct Numbers<Form<TW_E2M1, 4, false>> : Codes<4, false, true> {};
template <>
struct Numbers<Form<TW_E4M3, 8, false>> : E4m3 {};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX512_NUMBERS_H_
