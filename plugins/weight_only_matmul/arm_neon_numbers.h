// How the NEON kernels decode weights in registers: four elements of K of 8 rows, half a panel, as four
// vectors of floats. The codecs have the members that those of x86_avx512_numbers.h have; `half` is the part.
#ifndef TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_ARM_NEON_NUMBERS_H_
#define TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_ARM_NEON_NUMBERS_H_

#include "plugins/common/arm_neon.h"
#include "plugins/weight_only_matmul/vector.h"

namespace {

struct Four {
  static constexpr int kCount = 4;
  Eight n[kCount];
};

// Four bytes of each of 8 rows.
struct Line {
  uint8x16_t a, b;
};

TW_INLINE Line line_at(const char* from, int half) {
  const auto* bytes = (const uint8_t*)from + half * 32;
  return {vld1q_u8(bytes), vld1q_u8(bytes + 16)};
}

// Returns the line whose registers are of(those of x).
template <class Of>
TW_INLINE Line each(Line x, Of of) {
  return {of(x.a), of(x.b)};
}

// Returns signed bytes as floats.
TW_INLINE Four four_of_bytes(Line bytes) {
  const int32x4_t a = vreinterpretq_s32_u8(bytes.a), b = vreinterpretq_s32_u8(bytes.b);
  return {{{byte_as_float<0>(a), byte_as_float<0>(b)},
           {byte_as_float<1>(a), byte_as_float<1>(b)},
           {byte_as_float<2>(a), byte_as_float<2>(b)},
           {byte_as_float<3>(a), byte_as_float<3>(b)}}};
}

// Returns the zero point of each of 8 rows in the four bytes that the row has in a line.
TW_INLINE Line zero_points(const char* zeros, int half) {
  const uint8x16_t each = vld1q_u8((const uint8_t*)zeros);
  return {of_four_rows(each, half * 2), of_four_rows(each, half * 2 + 1)};
}

// Signed bytes.
template <bool kZeros>
struct Bytes {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {
    Eight each;
  };

  static TW_INLINE Zeros zeros(const char* zeros, int half) {
    if constexpr (!kZeros) return {Neon::all(0.0f)};
    return {four_of_bytes(zero_points(zeros, half)).n[0]};
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int, const Zeros& z) {
    Four four = four_of_bytes(line_at(block, half));
    TW_UNROLL
    for (int j = 0; kZeros && j < 4; ++j) four.n[j] = Neon::sub(four.n[j], z.each);
    return four;
  }
};

// Codes of 4, 3 or 2 bits. What is taken from those without zero points is half of the range.
template <int kOfBits, bool kZeros, bool kDoubledE2m1 = false>
struct Codes {
  static constexpr int kBits = kOfBits;
  static constexpr int kPlanes = kBits == 4 ? 2 : kBits == 2 ? 4 : 8, kBytes = kBits == 3 ? 192 : 64;
  struct Zeros {
    Line each;  // in the four bytes that a row has in a line
  };

  static TW_INLINE Zeros zeros(const char* zeros, int half) {
    if constexpr (!kZeros) return {{vdupq_n_u8(1 << (kBits - 1)), vdupq_n_u8(1 << (kBits - 1))}};
    return {zero_points(zeros, half)};
  }

  // Returns a byte for each code of a plane, of those from kPlane on.
  template <int kPlane>
  static TW_INLINE Line codes(const char* block, int half, int plane) {
    if constexpr (kPlane + 1 < kPlanes) {
      if (plane > kPlane) return codes<kPlane + 1>(block, half, plane);
    }
    if constexpr (kBits == 3) {
      const Line low = line_at(block + kPlane / 4 * 64, half);
      const Line upper = line_at(block + 128, half);  // a bit of it counts 4
      const auto joined = [](uint8x16_t x, uint8x16_t y) TW_ALWAYS {
        return vorrq_u8(vandq_u8(shifted<kPlane % 4 * 2>(x), vdupq_n_u8(3)),
                        vandq_u8(shifted<kPlane - 2>(y), vdupq_n_u8(4)));
      };
      return {joined(low.a, upper.a), joined(low.b, upper.b)};
    } else {
      return each(line_at(block, half), [](uint8x16_t x) TW_ALWAYS {
        return vandq_u8(shifted<kPlane * kBits>(x), vdupq_n_u8((1 << kBits) - 1));
      });
    }
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int plane, const Zeros& z) {
    const Line code = codes<0>(block, half, plane);
    if constexpr (kDoubledE2m1) {
      const uint8x16_t doubled =
          vreinterpretq_u8_s8(int8x16_t{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
      return four_of_bytes({vqtbl1q_u8(doubled, code.a), vqtbl1q_u8(doubled, code.b)});
    } else {
      return four_of_bytes({vsubq_u8(code.a, z.each.a), vsubq_u8(code.b, z.each.b)});
    }
  }
};

// E4M3. The bits of a normal number, moved, are those of a float whose exponent is lower by 120; numbers
// below the least normal one are multiples of 2^-9.
struct E4m3 {
  static constexpr int kBits = 8, kPlanes = 1, kBytes = 64;
  struct Zeros {};

  static TW_INLINE Zeros zeros(const char*, int) { return {}; }

  // Returns the number of the code in the lowest byte of each lane.
  static TW_INLINE float32x4_t number(uint32x4_t code) {
    const uint32x4_t size = vandq_u32(code, vdupq_n_u32(0x7f));
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(0x80)), 24);
    const uint32x4_t normal = vaddq_u32(vshlq_n_u32(size, 20), vdupq_n_u32(120u << 23));
    const uint32x4_t small = bits_of_floats(vmulq_f32(vcvtq_f32_u32(size), vdupq_n_f32(0x1p-9f)));
    return float_bits(vorrq_u32(vbslq_u32(vcgeq_u32(size, vdupq_n_u32(8)), normal, small), sign));
  }

  template <int kOf>
  static TW_INLINE Four four(const char* block, int half, int, const Zeros&) {
    const Line line = line_at(block, half);
    uint32x4_t a = vreinterpretq_u32_u8(line.a), b = vreinterpretq_u32_u8(line.b);
    Four four;
    TW_UNROLL
    for (int j = 0; j < 4; ++j) {
      four.n[j] = {number(a), number(b)};
      a = vshrq_n_u32(a, 8), b = vshrq_n_u32(b, 8);
    }
    return four;
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

#endif  // TENSORWRIGHT_PLUGINS_WEIGHT_ONLY_MATMUL_ARM_NEON_NUMBERS_H_
