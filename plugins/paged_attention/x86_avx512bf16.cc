// Attention over a bf16 cache with AVX512-BF16 dot instructions. Scores take two dimensions per step, sums of
// V two positions. So weights are rounded to bf16, and a row's sum is that of its rounded weights. Pairs of
// positions begin at even ones, whatever the chunk: the bits do not depend on who else is computed.
#include <stdint.h>

#include "plugins/paged_attention/x86_avx512.h"

namespace tensorwright {
namespace {

constexpr int kPairs = TW_LANES / 2;  // of the positions of a tile

// 2^f for f from 0 to 1 as a polynomial, off by 7.5e-5 of it at most: a 26th of what rounding to bf16 is off
// by.
constexpr float kPower0 = 0.999925219f, kPower1 = 0.695833541f, kPower2 = 0.226067155f,
                kPower3 = 0.0780245227f;
constexpr float kLog2E = 1.44269504f;

typedef uint32_t Pair __attribute__((may_alias, aligned(2)));  // of bf16, where floats or bf16 are

// The weights of a tile are 8 pairs of bf16, at the begin of the tile's scores, which they replace.
struct RoundedWeight {
  static const Pair* pairs(const RowBlock& block, int row, int in_chunk) {
    return (const Pair*)block.weight[row] + in_chunk * TW_LANES;
  }

  // Lanes 0 to 7 of `sum` are sums of pairs. The weight of a position that is not seen is 0.
  static TW_INLINE __m512 add(RowBlock& block, int row, int in_chunk, __m512 score, float max,
                              __mmask16 visible, __m512 sum) {
    const __m512 power = _mm512_fmsub_ps(score, _mm512_set1_ps(kLog2E), _mm512_set1_ps(max * kLog2E));
    const __m512 f = _mm512_reduce_ps(power, _MM_FROUND_TO_NEG_INF);  // power - floor(power), 0 for -inf
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kPower3), f, _mm512_set1_ps(kPower2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kPower1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kPower0));
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_scalef_ps(visible, p, power));
    _mm256_store_si256((__m256i*)pairs(block, row, in_chunk), (__m256i)rounded);
    const auto ones = (__m256bh)_mm256_set1_epi16(0x3f80);
    return _mm512_zextps256_ps512(_mm256_dpbf16_ps(_mm512_castps512_ps256(sum), rounded, ones));
  }
};

// Two rows of V as pairs: W vectors, or a masked one. Of every two vectors the first has columns 0 to 3, 8 to
// 11, 16 to 19 and 24 to 27, so that an instruction within 128 bits makes it.
template <int W>
TW_INLINE void load_pairs(const char* v, int64_t row_bytes, __mmask16 lanes, __m512i (&pair)[W]) {
  if (W == 1) {
    const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, v));
    const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, v + row_bytes));
    pair[0] = _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
    return;
  }
  TW_UNROLL
  for (int w = 0; w + 1 < W; w += 2) {
    const __m512i first = _mm512_loadu_si512(v + w * 2 * TW_LANES);
    const __m512i second = _mm512_loadu_si512(v + row_bytes + w * 2 * TW_LANES);
    pair[w] = _mm512_unpacklo_epi16(first, second);
    pair[w + 1] = _mm512_unpackhi_epi16(first, second);
  }
}

// Brings sums from the order of columns into that of load_pairs.
template <int W>
TW_INLINE void load_sums(const float* from, __mmask16 lanes, __m512 (&acc)[W]) {
  if (W == 1) {
    acc[0] = _mm512_maskz_loadu_ps(lanes, from);
    return;
  }
  TW_UNROLL
  for (int w = 0; w + 1 < W; w += 2) {
    const __m512 low = _mm512_loadu_ps(from + w * TW_LANES),
                 high = _mm512_loadu_ps(from + (w + 1) * TW_LANES);
    acc[w] = _mm512_shuffle_f32x4(low, high, 0x88);
    acc[w + 1] = _mm512_shuffle_f32x4(low, high, 0xdd);
  }
}

template <int W>
TW_INLINE void store_sums(float* to, __mmask16 lanes, const __m512 (&acc)[W]) {
  if (W == 1) {
    _mm512_mask_storeu_ps(to, lanes, acc[0]);
    return;
  }
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  TW_UNROLL
  for (int w = 0; w + 1 < W; w += 2) {
    const __m512d even = _mm512_castps_pd(acc[w]), odd = _mm512_castps_pd(acc[w + 1]);
    _mm512_storeu_ps(to + w * TW_LANES, _mm512_castpd_ps(_mm512_permutex2var_pd(even, low, odd)));
    _mm512_storeu_ps(to + (w + 1) * TW_LANES, _mm512_castpd_ps(_mm512_permutex2var_pd(even, high, odd)));
  }
}

// Adds a tile that every row sees. `ahead` is as long as the tile of V and is fetched meanwhile.
template <int R, int W>
TW_INLINE void add_pairs(const Pair* weight, const char* v, const char* ahead, int64_t row_bytes,
                         __mmask16 lanes, __m512 (&acc)[R][W]) {
  for (int j = 0; j < kPairs; ++j, v += 2 * row_bytes, ahead += 2 * row_bytes, ++weight) {
    __m512i pair[W];
    load_pairs<W>(v, row_bytes, lanes, pair);
    TW_UNROLL
    for (int at = 0; at < 2 * W * TW_LANES; at += 64) {
      _mm_prefetch(ahead + at, _MM_HINT_T1);
      _mm_prefetch(ahead + row_bytes + at, _MM_HINT_T1);
    }
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto p = (__m512bh)_mm512_set1_epi32((int)weight[r * kChunk * TW_LANES]);
      TW_UNROLL
      for (int w = 0; w < W; ++w) acc[r][w] = _mm512_dpbf16_ps(acc[r][w], p, (__m512bh)pair[w]);
    }
  }
}

// Adds a tile that some row sees only in part. What a row does not see is not added, not even times 0: it may
// be anything.
template <int R, int W>
TW_INLINE void add_seen_pairs(const RowBlock& block, int tile, int in_chunk, const char* v, int64_t row_bytes,
                              __mmask16 lanes, __m512 (&acc)[R][W]) {
  static const uint32_t kSeen[4] = {0, 0xffff, 0xffff0000, 0xffffffff};
  for (int j = 0; j < kPairs; ++j, v += 2 * row_bytes) {
    __m512i pair[W];
    load_pairs<W>(v, row_bytes, lanes, pair);
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      const uint32_t seen = kSeen[block.visible[r][tile] >> 2 * j & 3];
      const auto p = (__m512bh)_mm512_set1_epi32((int)(RoundedWeight::pairs(block, r, in_chunk)[j] & seen));
      TW_UNROLL
      for (int w = 0; w < W; ++w) {
        const auto value = (__m512bh)_mm512_and_si512(pair[w], _mm512_set1_epi32((int)seen));
        const __m512 sum = _mm512_dpbf16_ps(acc[r][w], p, value);  // GCC 12 masks 8 of its 16 lanes
        acc[r][w] = _mm512_mask_mov_ps(acc[r][w], seen ? 0xffff : 0, sum);
      }
    }
  }
}

// Does step 3 of x86_avx512.h for R rows and W vectors of V.
template <int R, int W>
inline void weigh_pairs(const RowBlock& block, const TilePointers& tiles, int begin, int end, int v_dim,
                        Columns columns, float* out) {
  const int64_t row_bytes = 2 * (int64_t)v_dim, at = 2 * (int64_t)columns.begin;
  __m512 acc[R][W] = {};
  if (begin != block.tile_begin) {
    TW_UNROLL
    for (int r = 0; r < R; ++r) load_sums<W>(out + (int64_t)r * v_dim + columns.begin, columns.lanes, acc[r]);
  }
  for (int tile = begin; tile < end; ++tile) {
    const int in_chunk = tile - begin;
    const char *v = tiles.v[tile] + at, *ahead = tiles.k[tile + kChunk] + at;
    if (block.rescaled >> in_chunk & 1) {
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 rescale = _mm512_set1_ps(block.rescale[r][in_chunk]);
        TW_UNROLL
        for (int w = 0; w < W; ++w) acc[r][w] = _mm512_mul_ps(acc[r][w], rescale);
      }
    }
    if (block.whole[tile]) {
      add_pairs<R, W>(RoundedWeight::pairs(block, 0, in_chunk), v, ahead, row_bytes, columns.lanes, acc);
    } else {
      add_seen_pairs<R, W>(block, tile, in_chunk, v, row_bytes, columns.lanes, acc);
    }
  }
  TW_UNROLL
  for (int r = 0; r < R; ++r) store_sums<W>(out + (int64_t)r * v_dim + columns.begin, columns.lanes, acc[r]);
}

struct PairedSums {
  explicit PairedSums(const tw_attention_args*) {}

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    constexpr int kVectors = R <= 6 ? 4 : 2;
    int column = 0;
    for (; column + kVectors * TW_LANES <= a->v_dim; column += kVectors * TW_LANES)
      weigh_pairs<R, kVectors>(block, tiles, begin, end, a->v_dim, {column, 0xffff}, out);
    for (; column < a->v_dim; column += TW_LANES)
      weigh_pairs<R, 1>(block, tiles, begin, end, a->v_dim, {column, tw_lanes_avx512(a->v_dim - column)},
                        out);
  }
  template <int R>
  void finish(const tw_attention_args*, float*) {}
};

struct ScoresDot {
  using Q = uint32_t;  // a pair of bf16
  using Weight = RoundedWeight;
  using Sums = PairedSums;
  static constexpr int kDtype = TW_BF16;
  static size_t packed_bytes(int head_dim) { return (size_t)((head_dim + 1) / 2) * kMaxRows * sizeof(Q); }

  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    for (int r = 0; r < rows; ++r) {
      const int64_t query = (row + r) / a->group, head = (row + r) % a->group;
      const uint16_t* q = (const uint16_t*)a->q + query * a->q_stride + head * a->head_dim;
      // By values: a checked memcpy of four bytes is a call.
      for (int pair = 0; pair < a->head_dim / 2; ++pair) to[pair * rows + r] = ((const Pair*)q)[pair];
      // The last element of an odd head_dim is paired with a zero, as in K.
      if (a->head_dim % 2) to[a->head_dim / 2 * rows + r] = q[a->head_dim - 1];
    }
  }

  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    __m512 acc[R][N];
    clear(acc);
    for (int pair = 0; pair < (head_dim + 1) / 2; ++pair, q += R) {
      __m512i k[N];
      TW_UNROLL
      for (int n = 0; n < N; ++n) k[n] = _mm512_loadu_si512((const uint32_t*)tile[n] + pair * TW_LANES);
      TW_UNROLL
      for (int n = 0; n < N; ++n) _mm_prefetch(ahead[n] + pair * 64, _MM_HINT_T1);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32((int)q[r]);
        TW_UNROLL
        for (int n = 0; n < N; ++n) acc[r][n] = _mm512_dpbf16_ps(acc[r][n], x, (__m512bh)k[n]);
      }
    }
    store(acc, out);
  }
};

}  // namespace

void attention_bf16_avx512bf16(const tw_attention_args* a) { attend<Attention<ScoresDot>>(a); }

}  // namespace tensorwright
