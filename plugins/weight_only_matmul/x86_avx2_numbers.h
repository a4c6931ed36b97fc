// How the AVX2 kernels decode weights in registers: four elements of K of 8 rows, half a panel, as four
// vectors of floats. The codecs have the members that those of x86_avx512_numbers.h have; `half` is the part.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX2_NUMBERS_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX2_NUMBERS_H_

#include "plugins/common/x86_avx2.h"
#include "plugins/weight_only_matmul/vector.h"

namespace {

struct Four {
  static constexpr int kCount = 4;
  __m256 n[kCount];
};

TW_INLINE __m256i line_at(const char* from, int half) {
  return _mm256_loadu_si256((const __m256i*)(from + half * 32));
}

// Returns signed bytes as floats.
TW_INLINE Four four_of_bytes(__m256i bytes) {
  return {{_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24), 24)),
           _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 16), 24)),
           _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 8), 24)),
           _mm256_cvtepi32_ps(_mm256_srai_epi32(bytes, 24))}};
}

// Returns the zero points of 8 rows.
TW_INLINE __m256i zero_points(const char* zeros, int half) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(zeros + half * 8)));
}

// Signed bytes.
template <bool kZeros>
struct Bytes {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {
    __m256 each;
  };

  static TW_INLINE Zeros zeros(const char* zeros, int half) {
    if constexpr (!kZeros) return {_mm256_setzero_ps()};
    return {_mm256_cvtepi32_ps(zero_points(zeros, half))};
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int, const Zeros& z) {
    Four four = four_of_bytes(line_at(block, half));
    TW_UNROLL
    for (int j = 0; kZeros && j < 4; ++j) four.n[j] = _mm256_sub_ps(four.n[j], z.each);
    return four;
  }
};

// Codes of 4, 3 or 2 bits. What is taken from those without zero points is half of the range.
template <int kOfBits, bool kZeros, bool kDoubledE2m1 = false>
struct Codes {
  static constexpr int kBits = kOfBits;
  static constexpr int kPlanes = kBits == 4 ? 2 : kBits == 2 ? 4 : 8, kBytes = kBits == 3 ? 192 : 64;
  struct Zeros {
    __m256i each;  // in the four bytes that a row has in a line
  };

  static TW_INLINE Zeros zeros(const char* zeros, int half) {
    if constexpr (!kZeros) return {_mm256_set1_epi8(1 << (kBits - 1))};
    return {_mm256_mullo_epi32(zero_points(zeros, half), _mm256_set1_epi32(0x01010101))};
  }

  // Returns a byte for each code.
  static TW_INLINE __m256i codes(const char* block, int half, int plane) {
    const __m256i mask = _mm256_set1_epi8((1 << (kBits == 3 ? 2 : kBits)) - 1);
    if constexpr (kBits == 3) {
      const __m256i low = _mm256_srli_epi16(line_at(block + plane / 4 * 64, half), plane % 4 * 2);
      const __m256i upper = line_at(block + 128, half);  // a bit of it counts 4
      const __m256i moved =
          plane < 2 ? _mm256_slli_epi16(upper, 2 - plane) : _mm256_srli_epi16(upper, plane - 2);
      return _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_and_si256(moved, _mm256_set1_epi8(4)));
    } else {
      return _mm256_and_si256(_mm256_srli_epi16(line_at(block, half), plane * kBits), mask);
    }
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int plane, const Zeros& z) {
    const __m256i code = codes(block, half, plane);
    if constexpr (kDoubledE2m1) {
      const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
      return four_of_bytes(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(doubled), code));
    }
    return four_of_bytes(_mm256_sub_epi8(code, z.each));
  }
};

// E4M3, by the bytes of bfloat16. The lower one of a normal number is the lowest four bits of the code,
// moved; the upper one is found by the highest four, for the bias of the exponent is larger by 120. Numbers
// below the least normal one are multiples of 2^-9: what differs in their bytes is turned by tables of the
// code, which have 0 for larger codes.
struct E4m3 {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {};

  static TW_INLINE Zeros zeros(const char*, int) { return {}; }

  static TW_INLINE __m256i look_up(__m128i table, __m256i at) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), at);
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int, const Zeros&) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i upper_of = _mm_setr_epi8(0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43,
                                           -0x42, -0x41, -0x40, -0x3f, -0x3e, -0x3d);
    // 0x3c00 + 16 m against bfloat16 of m * 2^-9: 0, 3b00, 3b80, 3bc0, 3c00, 3c20, 3c40, 3c60.
    const __m128i turned_upper = _mm_setr_epi8(0x3c, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i turned_lower =
        _mm_setr_epi8(0, 0x10, (char)0xa0, (char)0xf0, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i four_bits = _mm256_set1_epi8(15);
    const __m256i code = _mm256_shuffle_epi8(line_at(block, half), _mm256_broadcastsi128_si256(order));
    const __m256i size = _mm256_and_si256(code, _mm256_set1_epi8(0x7f));
    // An index above 0x7f gives 0.
    const __m256i small = _mm256_add_epi8(size, _mm256_set1_epi8(0x70));
    __m256i upper = look_up(upper_of, _mm256_and_si256(_mm256_srli_epi16(code, 4), four_bits));
    __m256i lower = _mm256_andnot_si256(four_bits, _mm256_slli_epi16(code, 4));
    upper = _mm256_xor_si256(upper, look_up(turned_upper, small));
    lower = _mm256_xor_si256(lower, look_up(turned_lower, small));
    // Pairs of bfloat16: elements (0, 1) and (2, 3).
    const __m256i first = _mm256_unpacklo_epi8(lower, upper), second = _mm256_unpackhi_epi8(lower, upper);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(first, high)),
             _mm256_castsi256_ps(_mm256_slli_epi32(second, 16)),
             _mm256_castsi256_ps(_mm256_and_si256(second, high))}};
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

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_X86_AVX2_NUMBERS_H_
