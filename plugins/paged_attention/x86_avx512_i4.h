// Attention over an int4 cache on AVX-512: the scores, and the scales and offsets of V. Bytes of q, signed,
// meet integers of K, unsigned, so a lane's sum is exact in any order.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I4_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I4_H_

#include "plugins/paged_attention/x86_avx512.h"

namespace {

// Splits the words of a page into scales and offsets.
struct ScalesI4 {
  __m512 scale, offset;
  explicit ScalesI4(const void* words) {
    const __m512i word = _mm512_loadu_si512(words);
    scale = _mm512_castsi512_ps(_mm512_and_si512(word, _mm512_set1_epi32((int)0xffff0000u)));
    offset = _mm512_castsi512_ps(_mm512_slli_epi32(word, 16));
  }
};

// Eight::Eight(x) takes eight integers of K of 16 positions, and add(acc, upper, lower, upper, lower) returns
// acc plus their products with q, whose words pack_narrow made.
template <typename Eight>
struct ScoresI4 : PlainSteps<TW_I4> {
  using Q = int32_t;
  static constexpr int kDtype = TW_I4;
  static size_t packed_bytes(int head_dim) { return narrow_q_words(head_dim, kMaxRows) * sizeof(Q); }
  static void pack(const tw_attention_args* a, int64_t row, int rows, Q* to) {
    pack_narrow(a, row, rows, to);
  }

  template <int R, int N>
  static inline void tiles(const char* const* tile, const char* const* ahead, const Q* q, int head_dim,
                           float* out) {
    const float *q_scale = (const float*)q, *q_sum = q_scale + R;
    const int groups = tw_kv_scales(TW_I4, head_dim);
    q += R * (1 + groups);
    for (int group = 0; group < groups; ++group, q_sum += R) {
      const int64_t at = (int64_t)group * TW_KV_GROUP_BYTES;
      const int left = head_dim - group * TW_KV_GROUP;
      const int64_t bytes = (int64_t)tw_kv_panel_bytes(TW_I4, left < TW_KV_GROUP ? left : (int)TW_KV_GROUP);
      add_group<R, N>(tile, ahead, at, bytes, q, q_scale, q_sum, group == 0, out);
      q += bytes / 64 * 4 * R;
    }
  }

 private:
  template <int R, int N>
  static TW_INLINE void add_group(const char* const* tile, const char* const* ahead, int64_t at,
                                  int64_t bytes, const Q* q, const float* q_scale, const float* q_sum,
                                  bool first, float* out) {
    __m512i acc[R][N];
    TW_UNROLL
    for (int r = 0; r < R; ++r) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_si512();
    }
    for (const int64_t end = at + bytes; at < end; at += 64, q += 4 * R) {
      TW_UNROLL
      for (int n = 0; n < N; ++n) {
        const Eight k(_mm512_loadu_si512(tile[n] + at));
        _mm_prefetch(ahead[n] + at, _MM_HINT_T1);
        TW_UNROLL
        for (int r = 0; r < R; ++r) {
          const auto word = [&](int i) TW_ALWAYS { return _mm512_set1_epi32(q[i * R + r]); };
          acc[r][n] = k.add(acc[r][n], word(0), word(1), word(2), word(3));
          __asm__("" : "+v"(acc[r][n]));  // keeps it in a register; otherwise GCC stores some in every turn
        }
      }
    }
    TW_UNROLL
    for (int n = 0; n < N; ++n) {
      const ScalesI4 k(tile[n] + at);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        float* to = out + r * kChunk * TW_LANES + n * TW_LANES;
        const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(to);
        const __m512 dot = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][n]), _mm512_set1_ps(q_scale[r]));
        const __m512 scaled = _mm512_fmadd_ps(dot, k.scale, before);
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_set1_ps(q_sum[r]), k.offset, scaled));
      }
    }
  }
};

// The weights times the scales of one group of columns, and the sums of weights times offsets of every group.
template <>
struct Values<TW_I4> {
  alignas(64) Weights scaled;
  alignas(64) float offset_sum[TW_MAX_KV_GROUPS][kMaxRows][TW_LANES];

  explicit Values(const tw_attention_args* a) {
    memset(offset_sum, 0, (size_t)tw_kv_scales(TW_I4, a->head_dim) * sizeof offset_sum[0]);
  }

  template <int R>
  void scale_weights(const tw_attention_args* a, const RowBlock& block, const TilePointers& tiles, int begin,
                     int end, int group) {
    for (int tile = begin; tile < end; ++tile) {
      const int in_chunk = tile - begin;
      const int64_t at = (int64_t)group * a->block_size * 4;
      const ScalesI4 v((const char*)tiles.v_scale[tile] + at);
      _mm_prefetch((const char*)tiles.v_scale[tile + kChunk] + at, _MM_HINT_T0);
      TW_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m512 p = _mm512_load_ps(block.weight[r] + in_chunk * TW_LANES);
        _mm512_store_ps(scaled[r] + in_chunk * TW_LANES, _mm512_mul_ps(p, v.scale));
        __m512 sum = _mm512_load_ps(offset_sum[group][r]);
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(block.rescale[r][in_chunk]));
        const auto seen = (__mmask16)block.visible[r][tile];
        _mm512_store_ps(offset_sum[group][r], _mm512_mask3_fmadd_ps(p, v.offset, sum, seen));
      }
    }
  }

  template <int R>
  void add(const tw_attention_args* a, RowBlock& block, const TilePointers& tiles, int begin, int end,
           float* out) {
    for (int column = 0; column < a->v_dim; column += TW_KV_GROUP) {
      const int end_column = column + TW_KV_GROUP < a->v_dim ? column + (int)TW_KV_GROUP : a->v_dim;
      scale_weights<R>(a, block, tiles, begin, end, column / TW_KV_GROUP);
      weigh_columns<TW_I4, R>(block, scaled, tiles, begin, end, a->v_dim, column, end_column, out);
    }
  }

  template <int R>
  void finish(const tw_attention_args* a, float* out) {
    for (int r = 0; r < R; ++r, out += a->v_dim) {
      for (int column = 0; column < a->v_dim; column += TW_LANES) {
        const __mmask16 lanes = tw_lanes_avx512(a->v_dim - column);
        const float sum = tw_tree_sum_avx512(_mm512_load_ps(offset_sum[column / TW_KV_GROUP][r]));
        const __m512 acc = _mm512_maskz_loadu_ps(lanes, out + column);
        _mm512_mask_storeu_ps(out + column, lanes, _mm512_add_ps(acc, _mm512_set1_ps(sum)));
      }
    }
  }
};

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_X86_AVX512_I4_H_
