// Computes a quantized matmul of weights with steps in registers of 256 bits, for AVX2 and AVX-VNNI.
//
//   for each unit of 4 panels, for each chunk of rows, for each block of K:
//     decode to bytes, as whole rows have them, in the L1 cache
//     for R <= 6 rows of the chunk, for P panels: exact sums, which begin where the last block ended
//   then scales, bias, activation, residual and rounding for the chunk
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_STEPS_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_STEPS_H_

#include "plugins/quantized_matmul/x86_ymm.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kBlockColumns = 256;                     // of K
constexpr int64_t kDecodedPanel = kBlockColumns * kLanes;  // bytes

// Decodes groups [begin, end) of a panel. Steps are at most TW_MOST_STEP and codes at most 15, so a product
// of words multiplies the two codes in a word at once.
template <int kDtype>
void decode_panel(const tw_quantized_matmul_args* a, const char* panel, int64_t begin, int64_t end,
                  char* to) {
  constexpr tw_weight_codec kCodec = tw_codec(kDtype);
  const __m256i ones = _mm256_set1_epi32(0x01010101), pairs = _mm256_set1_epi32(0x00010001);
  const __m256i nibble = _mm256_set1_epi8(15);
  for (int64_t i = begin; i < end; ++i) {
    const char* steps = panel + tw_quantized_scale_offset(kDtype, a->matmul.k, a->group, i);
    const char* line = panel + tw_quantized_group_offset(kDtype, a->matmul.k, a->group, i);
    __m256i step[2], offset[2];  // of 8 rows each, in the 4 bytes that each row has in a line
    for (int half = 0; half < 2; ++half) {
      const __m128i from =
          _mm_min_epu8(_mm_loadl_epi64((const __m128i*)(steps + half * 8)), _mm_set1_epi8(TW_MOST_STEP));
      const __m128i least = _mm_loadl_epi64((const __m128i*)(steps + kCodec.zeros + half * 8));
      step[half] = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(from), pairs);
      // Offsets are stored plus 128, and flipping the sign bit takes that away.
      offset[half] = _mm256_xor_si256(_mm256_mullo_epi32(_mm256_cvtepu8_epi32(least), ones),
                                      _mm256_set1_epi8((char)0x80));
    }
    for (int64_t n = a->group / 8; n > 0; --n, line += 64, to += 128) {
      for (int half = 0; half < 2; ++half) {
        const __m256i codes = _mm256_loadu_si256((const __m256i*)(line + half * 32));
        const __m256i low = _mm256_mullo_epi16(_mm256_and_si256(codes, nibble), step[half]);
        const __m256i high =
            _mm256_mullo_epi16(_mm256_and_si256(_mm256_srli_epi32(codes, 4), nibble), step[half]);
        _mm256_storeu_si256((__m256i*)(to + half * 32), _mm256_add_epi8(low, offset[half]));
        _mm256_storeu_si256((__m256i*)(to + 64 + half * 32), _mm256_add_epi8(high, offset[half]));
      }
    }
  }
}

// Adds a block of R rows and P decoded panels to exact sums in memory.
template <class Dot, int R, int P>
void add_block(const Group* g) {
  __m256i acc[R][2 * P];
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < 2 * P; ++i)
      acc[r][i] = _mm256_loadu_si256((const __m256i*)(g->sum + r * kUnit * kLanes + i * 8));
  }
  Dot::dot(acc, g);
  TW_UNROLL
  for (int r = 0; r < R; ++r) {
    TW_UNROLL
    for (int i = 0; i < 2 * P; ++i)
      _mm256_storeu_si256((__m256i*)(g->sum + r * kUnit * kLanes + i * 8), acc[r][i]);
  }
}

template <class Dot>
Micro block_micro(int64_t rows, int64_t panels) {
  static const Micro one[kRows] = {add_block<Dot, 1, 1>, add_block<Dot, 2, 1>, add_block<Dot, 3, 1>,
                                   add_block<Dot, 4, 1>, add_block<Dot, 5, 1>, add_block<Dot, 6, 1>};
  static const Micro two[2] = {add_block<Dot, 1, 2>, add_block<Dot, 2, 2>};
  if (panels == 1) return one[rows - 1];
  if (panels == 2) return two[rows - 1];
  return panels == 3 ? add_block<Dot, 1, 3> : add_block<Dot, 1, 4>;
}

// Adds groups [begin, end) of K to the sums of a chunk of rows and a unit of panels.
template <class Dot, int kDtype>
void sum_block(const tw_quantized_matmul_args* a, const Part& part) {
  char decoded[kUnit * kDecodedPanel];
  const int64_t w_stride = tw_quantized_panel_bytes(kDtype, a->matmul.k, a->group);
  for (int64_t p = 0; p < part.panels; ++p) {
    decode_panel<kDtype>(a, (const char*)a->matmul.w + (part.panel + p) * w_stride, part.begin, part.end,
                         decoded + p * kDecodedPanel);
  }
  Group g = {};
  g.x_stride = a->matmul.x_stride;
  g.w_stride = kDecodedPanel;
  g.lines = (part.end - part.begin) * a->group / 4;
  const int64_t passes = ceil_div(part.rows, kRows);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = part.rows * pass / passes, count = part.rows * (pass + 1) / passes - first;
    const int64_t at_once = count == 1 ? 4 : count == 2 ? 2 : 1;
    g.x = (const int8_t*)a->matmul.x + (part.row + first) * g.x_stride + part.begin * a->group;
    for (int64_t p = 0; p < part.panels; p += at_once) {
      g.w = decoded + p * kDecodedPanel;
      g.sum = part.sum + (first * kUnit + p) * kLanes;
      block_micro<Dot>(count, at_most(at_once, part.panels - p))(&g);
    }
  }
}

// Lets the sums of a part start at what cancels that weights are made unsigned, or at 0.
template <class Dot>
void start_part(const tw_quantized_matmul_args* a, const Part& part) {
  for (int64_t r = 0; r < part.rows; ++r) {
    const __m256i excess = _mm256_set1_epi32(Dot::kUnsigned ? a->x_sum[part.row + r] : 0);
    for (int64_t i = 0; i < part.panels * kLanes; i += 8)
      _mm256_storeu_si256((__m256i*)(part.sum + r * kUnit * kLanes + i), excess);
  }
}

// Multiplies the exact sums of a part by their scales.
inline void scale_part(const tw_quantized_matmul_args* a, const Part& part, int64_t w_stride) {
  for (int64_t i = 0; i < part.panels * kLanes; i += 8) {
    const char* panel = (const char*)a->matmul.w + (part.panel + i / kLanes) * w_stride;
    const __m256 w_scale = _mm256_loadu_ps((const float*)panel + i % kLanes);
    for (int64_t r = 0; r < part.rows; ++r) {
      float* at = part.sum + r * kUnit * kLanes + i;
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(a->x_scale[part.row + r]), w_scale);
      const __m256 dot = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)at));
      _mm256_storeu_ps(at, _mm256_mul_ps(dot, scale));
    }
  }
}

// Dot: that of whole rows of bytes.
template <class Dot, int kDtype>
void matmul_in_blocks(const tw_quantized_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const int64_t groups = tw_quantized_groups(a->k, args->group);
  const int64_t blocks = ceil_div(groups * args->group, kBlockColumns);
  float sum[kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows; row += kChunk) {
      Part part = {row, at_most(kChunk, a->rows - row), panel, panels, 0, 0, sum};
      start_part<Dot>(args, part);
      for (int64_t block = 0; block < blocks; ++block) {
        part.begin = groups * block / blocks, part.end = groups * (block + 1) / blocks;
        sum_block<Dot, kDtype>(args, part);
      }
      scale_part(args, part, tw_quantized_panel_bytes(kDtype, a->k, args->group));
      Kernels<Dot, true>::finish(args, row, part.rows, panel, panels, sum);
    }
  }
}

// Runs the kernel of a dtype. Bytes, Codes and Sparse: the `Dot`s of weights of 8 bits, of fewer, and of 2:4
// sparse ones.
template <template <int> class Bytes, template <int> class Codes, template <int> class Sparse, int kDtype>
void run_any(const tw_quantized_matmul_args* a) {
  if constexpr (tw_has_steps(kDtype)) {
    matmul_in_blocks<Bytes<TW_I8>, kDtype>(a);
  } else {
    run<Bytes, Codes, Sparse, kDtype>(a);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_YMM_STEPS_H_
