// quantized_matmul in registers of 128 bits: how the NEON kernels read weights of every dtype, and the micro
// kernel of dot products, which the instruction set's `Products` computes:
//   add(sum, w, x)   sum plus, in each of 4 lanes, the products of four signed bytes of w with those of x
//
// The panels of layout.h suit NEON as they are: a line of 64 bytes is 4 registers of 4 rows with 4 elements
// each. Products are of signed by signed bytes, so nothing is added to weights of 8 bits. Codes of fewer bits
// are read as they are, from 0 on, and the sums start at what cancels that.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_ARM_REGISTERS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_ARM_REGISTERS_H_

#include "plugins/common/arm_neon.h"
#include "plugins/matmul/vector_finish.h"
#include "plugins/quantized_matmul/cut.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Registers of a line, and of the lines of P panels.
constexpr int kParts = 4;

TW_INLINE uint8x16_t bytes_at(const char* at) { return vld1q_u8((const uint8_t*)at); }

// Returns four elements of x in each of 4 lanes.
TW_INLINE int8x16_t four_elements(const int8_t* x) {
  int32_t bits;
  memcpy(&bits, x, sizeof bits);
  return vreinterpretq_s8_s32(vdupq_n_s32(bits));
}

// How weights of one dtype are read. A block is the shortest run of elements that ends with a line; it has
// kSteps steps of 4 elements.
template <int kOf>
struct Weights {
  static constexpr tw_weight_codec kCodec = tw_codec(kOf);
  static constexpr int kDtype = kOf;
  static constexpr int kSteps = tw_block_steps(kOf), kBytes = tw_block_lines(kOf) * 64;
  static constexpr bool kStepped = tw_has_steps(kOf);
  // Whether codes are read as they are, without the number that layout.h says is taken from them.
  static constexpr bool kUnsigned = kCodec.values == TW_CODES && !kStepped;

  // What the decoding needs of a group of one panel: the steps and the offsets of its 16 rows, if it has
  // them.
  struct Levels {
    uint8x16_t step, offset;
  };
  static TW_INLINE Levels levels_of(const char* steps, const char* offsets) {
    if constexpr (!kStepped) return {vdupq_n_u8(0), vdupq_n_u8(0)};  // nobody reads them
    return {vminq_u8(bytes_at(steps), vdupq_n_u8(TW_MOST_STEP)), bytes_at(offsets)};
  }

  // Returns the weights of a step of a block, of rows 4 * part to 4 * part + 3.
  template <int kStep>
  static TW_INLINE int8x16_t at(const char* block, int part, const Levels& levels) {
    const char* line = block + part * 16;
    if constexpr (kCodec.bits == 8) {
      return vreinterpretq_s8_u8(bytes_at(line));
    } else if constexpr (kCodec.bits == 3) {
      const uint8x16_t low = shifted<kStep % 4 * 2>(bytes_at(line + kStep / 4 * 64));
      const uint8x16_t upper = shifted<kStep - 2>(bytes_at(line + 128));
      return vreinterpretq_s8_u8(vorrq_u8(vandq_u8(low, vdupq_n_u8(3)), vandq_u8(upper, vdupq_n_u8(4))));
    } else {
      const uint8x16_t codes =
          vandq_u8(shifted<kStep * kCodec.bits>(bytes_at(line)), vdupq_n_u8((1 << kCodec.bits) - 1));
      if constexpr (kCodec.values == TW_E2M1) {
        const int8x16_t doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        return vqtbl1q_s8(doubled, codes);
      } else if constexpr (kStepped) {
        // Offsets are stored plus 128, and flipping the sign bit takes that away.
        const uint8x16_t whole =
            vmlaq_u8(of_four_rows(levels.offset, part), codes, of_four_rows(levels.step, part));
        return vreinterpretq_s8_u8(veorq_u8(whole, vdupq_n_u8(0x80)));
      } else {
        return vreinterpretq_s8_u8(codes);
      }
    }
  }
};

// Returns where the sums of a group start for a row, in the lanes of 4 rows of weights: at x_sum, or, if
// there are zero points, at these times x_sum.
template <class Of>
TW_INLINE int32x4_t start_of(const Group* g, int r, int i) {
  if constexpr (Of::kCodec.zeros != 0 && !Of::kStepped) {
    int32_t bits;
    memcpy(&bits, g->zeros + i / kParts * g->w_stride + i % kParts * 4, sizeof bits);
    const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bits)));
    return vmulq_n_s32(vmovl_s16(vget_low_s16(words)), g->x_sum[r]);
  } else {
    return vdupq_n_s32(Of::kUnsigned ? g->x_sum[r] : 0);
  }
}

// Returns the scales of 4 rows of a group.
template <int kDtype>
TW_INLINE float32x4_t group_scales(const char* scales) {
  constexpr int kScales = tw_codec(kDtype).scales;
  if constexpr (kScales == TW_SCALES_E8M0) {
    uint32_t bits;
    memcpy(&bits, scales, sizeof bits);
    const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bits)));
    return float_bits(vshlq_n_u32(vmovl_u16(vget_low_u16(words)), 23));
  } else {
    const uint16x4_t half = vld1_u16((const uint16_t*)scales);
    if constexpr (kScales == TW_SCALES_F16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return widened_bf16(half);
  }
}

// How the exact sums of a group become a part of the result. kGrouped: they are scaled and added to the sums
// of the groups before. kWhole: all of K is one group, and they are scaled. kStepped: they are added to exact
// sums, which finish() scales.
enum Scaling { kGrouped, kWhole, kStepped };

// Adds the exact sums of one row and of 4 rows of weights, the i-th of the micro kernel's panels.
template <class Of, int kScaling>
TW_INLINE void put_sums(const Group* g, int r, int i, int32x4_t sums) {
  float* to = g->sum + r * kUnit * kLanes + i * 4;
  if constexpr (kScaling == kStepped) {
    vst1q_s32((int32_t*)to, vaddq_s32(vld1q_s32((const int32_t*)to), sums));
  } else {
    const char* from = g->scales + i / kParts * g->w_stride;
    float32x4_t w_scale;
    if constexpr (kScaling == kWhole) {
      w_scale = vld1q_f32((const float*)from + i % kParts * 4);
    } else {
      w_scale = group_scales<Of::kDtype>(from + i % kParts * 4 * Of::kCodec.scale_bytes);
    }
    const float32x4_t scale = vmulq_f32(vdupq_n_f32(g->x_scale[r]), w_scale), dot = vcvtq_f32_s32(sums);
    if constexpr (kScaling == kWhole) {
      vst1q_f32(to, vmulq_f32(dot, scale));
    } else {
      vst1q_f32(to, vfmaq_f32(vld1q_f32(to), dot, scale));
    }
  }
}

// Adds the products of the steps of a block from kStep on. acc: R rows, P panels.
template <class Of, class Products, int kStep, int R, int P>
TW_INLINE void add_steps(int32x4_t (&acc)[R][kParts * P], const int8_t* x, int64_t x_stride, const char* w,
                         int64_t w_stride, const typename Of::Levels (&levels)[P]) {
  int8x16_t weight[kParts * P], row[R];
  if constexpr (R < P * kParts) {
    TW_UNROLL
    for (int r = 0; r < R; ++r) row[r] = four_elements(x + r * x_stride + kStep * 4);
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) {
      weight[i] = Of::template at<kStep>(w + i / kParts * w_stride, i % kParts, levels[i / kParts]);
      TW_UNROLL
      for (int r = 0; r < R; ++r) acc[r][i] = Products::add(acc[r][i], weight[i], row[r]);
    }
  } else {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i)
      weight[i] = Of::template at<kStep>(w + i / kParts * w_stride, i % kParts, levels[i / kParts]);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      row[r] = four_elements(x + r * x_stride + kStep * 4);
      TW_UNROLL
      for (int i = 0; i < kParts * P; ++i) acc[r][i] = Products::add(acc[r][i], weight[i], row[r]);
    }
  }
  if constexpr (kStep + 1 < Of::kSteps)
    add_steps<Of, Products, kStep + 1>(acc, x, x_stride, w, w_stride, levels);
}

// Computes a group for R rows and P panels of dense weights.
template <class Of, class Products, int kScaling, int R, int P>
void dot_micro(const Group* g) {
  int32x4_t acc[R][kParts * P];
  typename Of::Levels levels[P];
  TW_UNROLL
  for (int p = 0; p < P; ++p)
    levels[p] = Of::levels_of(g->scales + p * g->w_stride, g->zeros + p * g->w_stride);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) acc[r][i] = start_of<Of>(g, r, i);
  }
  const int8_t* x = g->x;
  const char* w = g->w;
  for (int64_t n = g->lines; n > 0; n -= Of::kBytes / 64, x += Of::kSteps * 4, w += Of::kBytes)
    add_steps<Of, Products, 0>(acc, x, g->x_stride, w, g->w_stride, levels);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) put_sums<Of, kScaling>(g, r, i, acc[r][i]);
  }
}

// Returns the kept elements of 2:4 sparse weights: 4 rows, columns 8 * kEighth to 8 * kEighth + 7 of a block,
// whose line of kept elements begins at `line`.
template <int kOf, int kEighth>
TW_INLINE int8x16_t kept(const char* line) {
  if constexpr (tw_codec(kOf).bits == 8) {
    return vreinterpretq_s8_u8(bytes_at(line + kEighth * 64));
  } else {
    const uint8x16_t codes =
        vandq_u8(shifted<kEighth % 2 * 4>(bytes_at(line + kEighth / 2 * 64)), vdupq_n_u8(15));
    return vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(8));
  }
}

// Adds the products of 8 columns of a block from kEighth on. The places of the kept elements become an index
// into 8 elements of x, from which TBL takes the four that a row multiplies.
template <int kOf, class Products, int kEighth, int R, int P>
TW_INLINE void add_eighths(int32x4_t (&acc)[R][kParts * P], const Group* g, const int8_t* x, const char* w) {
  const uint8x16_t second = {0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4};
  TW_UNROLL
  for (int i = 0; i < kParts * P; ++i) {
    const char* block = w + i / kParts * g->w_stride + i % kParts * 16;
    const uint8x16_t places = vandq_u8(shifted<2 * kEighth>(bytes_at(block)), vdupq_n_u8(3));
    const uint8x16_t index = vorrq_u8(places, second);
    const int8x16_t weight = kept<kOf, kEighth>(block + TW_SPARSE_PLACES);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const int8x8_t eight = vld1_s8(x + r * g->x_stride + 8 * kEighth);
      acc[r][i] = Products::add(acc[r][i], weight, vqtbl1q_s8(vcombine_s8(eight, eight), index));
    }
  }
  if constexpr (kEighth < 3) add_eighths<kOf, Products, kEighth + 1, R, P>(acc, g, x, w);
}

// Computes a group for R rows and P panels of 2:4 sparse weights.
template <class Of, class Products, int R, int P>
void sparse_micro(const Group* g) {
  int32x4_t acc[R][kParts * P];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) acc[r][i] = vdupq_n_s32(0);
  }
  const int8_t* x = g->x;
  const char* w = g->w;
  for (int64_t n = g->lines; n > 0; --n, x += TW_SPARSE_BLOCK, w += tw_sparse_block_bytes(Of::kDtype))
    add_eighths<Of::kDtype, Products, 0, R, P>(acc, g, x, w);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < kParts * P; ++i) put_sums<Of, kGrouped>(g, r, i, acc[r][i]);
  }
}

typedef void (*Micro)(const Group*);

// Multiplies the exact sums of rows with steps by their scales.
inline void scale_sums(const tw_quantized_matmul_args* a, int dtype, int64_t row, int64_t rows, int64_t panel,
                       int64_t panels, float* sum) {
  const int64_t w_stride = tw_quantized_panel_bytes(dtype, a->matmul.k, a->group);
  for (int64_t i = 0; i < panels * kLanes; i += 4) {
    const char* scales = (const char*)a->matmul.w + (panel + i / kLanes) * w_stride;
    const float32x4_t w_scale = vld1q_f32((const float*)scales + i % kLanes);
    for (int64_t r = 0; r < rows; ++r) {
      float* at = sum + r * kUnit * kLanes + i;
      const float32x4_t scale = vmulq_f32(vdupq_n_f32(a->x_scale[row + r]), w_scale);
      vst1q_f32(at, vmulq_f32(vcvtq_f32_s32(vld1q_s32((const int32_t*)at)), scale));
    }
  }
}

// The `Kind` of cut.h. `Micros` has of<Of, kScaling, R, P>(), which returns the micro kernel of dense
// weights. Products: for 2:4 sparse weights.
template <class Of, class Micros, class Products, int kScaling>
struct Kernels {
  static constexpr int kDtype = Of::kDtype;

  static int64_t panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  template <int R, int P>
  static constexpr Micro micro_of() {
    if constexpr (Of::kCodec.sparse) {
      return sparse_micro<Of, Products, R, P>;
    } else {
      return Micros::template of<Of, kScaling, R, P>();
    }
  }

  static Micro micro(int64_t rows, int64_t panels) {
    static const Micro one[kRows] = {micro_of<1, 1>(), micro_of<2, 1>(), micro_of<3, 1>(),
                                     micro_of<4, 1>(), micro_of<5, 1>(), micro_of<6, 1>()};
    static const Micro two[2] = {micro_of<1, 2>(), micro_of<2, 2>()};
    if (panels == 1) return one[rows - 1];
    if (panels == 2) return two[rows - 1];
    return panels == 3 ? micro_of<1, 3>() : micro_of<1, 4>();
  }

  static void finish(const tw_quantized_matmul_args* a, int64_t row, int64_t rows, int64_t panel,
                     int64_t panels, float* sum) {
    const tw_matmul_args args = a->matmul;  // a copy: y cannot alias it
    if constexpr (kScaling == kStepped) scale_sums(a, kDtype, row, rows, panel, panels, sum);
    const FinishRow finish_row = finish_row_for<Neon>(args.epilogue);
    for (int64_t r = 0; r < rows; ++r) finish_row(args, row + r, panel, panels, sum + r * kUnit * kLanes);
  }
};

// Computes a call with weights of kDtype.
template <class Micros, class Products, int kDtype>
void run(const tw_quantized_matmul_args* a) {
  using Of = Weights<kDtype>;
  if constexpr (Of::kStepped) {
    matmul<Kernels<Of, Micros, Products, kStepped>>(a);
  } else if constexpr (kDtype == TW_I8) {
    a->group == 0 ? matmul<Kernels<Of, Micros, Products, kWhole>>(a)
                  : matmul<Kernels<Of, Micros, Products, kGrouped>>(a);
  } else {
    matmul<Kernels<Of, Micros, Products, kGrouped>>(a);
  }
}

// The micro kernels of dot products.
template <class Products>
struct Dots {
  template <class Of, int kScaling, int R, int P>
  static constexpr Micro of() {
    return dot_micro<Of, Products, kScaling, R, P>;
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_ARM_REGISTERS_H_
