// weight_only_matmul for AVX2, with the same bits as scalar.cc. Weights are decoded to floats, and so are the
// rows of x that a micro kernel reads.
//
// A panel takes two registers, so 6 rows and 1 panel, or 1 row and 4 panels, fill the 16 registers.
#include "plugins/matmul/x86_avx2_finish.h"
#include "plugins/weight_only_matmul/x86.h"

namespace {

constexpr int64_t kStride = kPart + 16;  // floats between rows of x

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

// Converts signed bytes, 4 elements of 8 rows, less `zero`, to floats: element e at to + e * 64.
TW_INLINE void put_bytes(__m256i line, __m256i zero, char* to) {
  const __m256i k0 = _mm256_srai_epi32(_mm256_slli_epi32(line, 24), 24);
  const __m256i k1 = _mm256_srai_epi32(_mm256_slli_epi32(line, 16), 24);
  const __m256i k2 = _mm256_srai_epi32(_mm256_slli_epi32(line, 8), 24);
  const __m256i k3 = _mm256_srai_epi32(line, 24);
  _mm256_store_ps((float*)to, _mm256_cvtepi32_ps(_mm256_sub_epi32(k0, zero)));
  _mm256_store_ps((float*)(to + 64), _mm256_cvtepi32_ps(_mm256_sub_epi32(k1, zero)));
  _mm256_store_ps((float*)(to + 128), _mm256_cvtepi32_ps(_mm256_sub_epi32(k2, zero)));
  _mm256_store_ps((float*)(to + 192), _mm256_cvtepi32_ps(_mm256_sub_epi32(k3, zero)));
}

// Converts codes of E4M3 in the lowest byte of each lane to floats. The bias of the exponent is larger by
// 120. Numbers below the least normal one are multiples of 2^-9.
TW_INLINE __m256 e4m3(__m256i code) {
  const __m256i size = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23));
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(size), _mm256_set1_ps(0x1p-9f));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), size);
  const __m256 number = _mm256_blendv_ps(_mm256_castsi256_ps(normal), small, _mm256_castsi256_ps(is_small));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  return _mm256_or_ps(number, _mm256_castsi256_ps(sign));
}

TW_INLINE __m256i line_at(const char* from, int half) {
  return _mm256_loadu_si256((const __m256i*)(from + half * 32));
}

// The zero points of 8 rows; without them `none` is that of each row.
struct Zeros {
  __m256i half[2];
};

Zeros zeros_of(const char* zeros, bool there, int none) {
  Zeros z = {{_mm256_set1_epi32(none), _mm256_set1_epi32(none)}};
  for (int half = 0; there && half < 2; ++half)
    z.half[half] = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(zeros + half * 8)));
  return z;
}

void decode_bytes(const char* from, int64_t count, const Zeros& z, char* to) {
  for (int64_t k = 0; k < count; k += 4, from += 64, to += 256) {
    for (int half = 0; half < 2; ++half) put_bytes(line_at(from, half), z.half[half], to + half * 32);
  }
}

// table: the numbers of the 16 nibbles.
void decode_nibbles(const char* from, int64_t count, __m256i table, const Zeros& z, char* to) {
  const __m256i four = _mm256_set1_epi8(15);
  for (int64_t k = 0; k < count; k += 8, from += 64, to += 512) {
    for (int half = 0; half < 2; ++half) {
      const __m256i line = line_at(from, half), high = _mm256_srli_epi16(line, 4);
      const __m256i first = _mm256_shuffle_epi8(table, _mm256_and_si256(line, four));
      const __m256i second = _mm256_shuffle_epi8(table, _mm256_and_si256(high, four));
      put_bytes(first, z.half[half], to + half * 32);
      put_bytes(second, z.half[half], to + 256 + half * 32);
    }
  }
}

// Decodes lines of codes of 2 bits. kUpper: whether the upper bits of 32 codes follow every two lines, as 3
// bits have them.
template <bool kUpper>
void decode_pairs(const char* from, int64_t count, const Zeros& z, char* to) {
  const __m256i mask = _mm256_set1_epi8(3), one = _mm256_set1_epi8(4);
  for (int64_t k = 0; k < count; k += 32, from += kUpper ? 192 : 128) {
    for (int at = 0; at < 8; ++at, to += 256) {
      for (int half = 0; half < 2; ++half) {
        const __m256i line = line_at(from + at / 4 * 64, half);
        __m256i code = _mm256_and_si256(_mm256_srli_epi16(line, at % 4 * 2), mask);
        if (kUpper) {
          const __m256i upper = line_at(from + 128, half);  // an upper bit counts 4
          const __m256i moved = at < 2 ? _mm256_slli_epi16(upper, 2 - at) : _mm256_srli_epi16(upper, at - 2);
          code = _mm256_or_si256(code, _mm256_and_si256(moved, one));
        }
        put_bytes(code, z.half[half], to + half * 32);
      }
    }
  }
}

void decode_codes(int bits, const char* from, int64_t count, const Zeros& z, char* to) {
  const __m128i whole = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (bits == 4) return decode_nibbles(from, count, _mm256_broadcastsi128_si256(whole), z, to);
  bits == 3 ? decode_pairs<true>(from, count, z, to) : decode_pairs<false>(from, count, z, to);
}

void decode_e4m3(const char* from, int64_t count, char* to) {
  for (int64_t k = 0; k < count; k += 4, from += 64, to += 256) {
    for (int half = 0; half < 2; ++half) {
      __m256i line = line_at(from, half);
      for (int e = 0; e < 4; ++e, line = _mm256_srli_epi32(line, 8))
        _mm256_store_ps((float*)(to + e * 64 + half * 32), e4m3(line));
    }
  }
}

// Converts `count` elements of one row of x to floats.
void widen(const void* x, int dtype, int64_t count, float* to) {
  for (int64_t k = 0; k < count; k += 8) {
    _mm256_storeu_ps(to + k, dtype == TW_BF16 ? tw_load_bf16_avx2((const uint16_t*)x + k, count - k)
                                              : tw_load_avx2((const float*)x + k, count - k));
  }
}

template <int kOfX>
struct Avx2Set {
  static constexpr int kDtype = TW_F32;
  static constexpr int64_t kRowsAtOnce = kRows;

  static void decode(const Packed& p, const char* from, const char* zeros, int64_t count, char* to) {
    const bool has_zeros = p.codec.zeros != 0;
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    switch (p.codec.values) {
      case TW_BYTES:
        return decode_bytes(from, count, zeros_of(zeros, has_zeros, 0), to);
      case TW_CODES:
        return decode_codes(p.codec.bits, from, count, zeros_of(zeros, has_zeros, half_range(p)), to);
      case TW_E2M1:
        return decode_nibbles(from, count, _mm256_broadcastsi128_si256(doubled), zeros_of(zeros, false, 0),
                              to);
      case TW_E4M3:
        return decode_e4m3(from, count, to);
      default:
        return decode_numbers<TW_F32>(p, from, zeros, count, to);
    }
  }

  static void scales(const Packed& p, const char* from, float* to) {
    for (int64_t lane = 0; lane < TW_LANES; ++lane)
      to[lane] = tw_quantized_scale(p.dtype, from, p.group, lane);
  }

  static void sum(const tw_matmul_args* a, const Part& part, const Decoded<TW_F32>& w, int64_t panels,
                  int64_t row, int64_t rows, float* sum) {
    constexpr int64_t bytes = kOfX == TW_BF16 ? 2 : 4;
    const int64_t depth = part.end - part.begin;
    float x[kRows * kStride];
    for (int64_t r = 0; r < rows; ++r) {
      const char* from = (const char*)a->x + ((row + r) * a->x_stride + part.begin) * bytes;
      widen(from, kOfX, depth, x + r * kStride);
    }
    const int64_t at_once = panels_at_once(rows);
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
