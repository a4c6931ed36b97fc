// The reference attention kernels: one (query, head) row at a time, one position at a time. The order of
// operations here is the definition that every other instruction set repeats.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/quantize.h"
#include "plugins/paged_attention/visible.h"

namespace tensorwright {
namespace {

// Plain reads a cache of float32 or bfloat16, with q of the same dtype.
template <int kDtype>
struct Plain {
  const tw_attention_args* a;
  int64_t q;  // element of a->q

  Plain(const tw_attention_args* args, int64_t at) : a(args), q(at) {}

  static float widen(const void* from, int64_t at) {
    return kDtype == TW_BF16 ? tw_bf16_to_f32(((const uint16_t*)from)[at]) : ((const float*)from)[at];
  }

  float dot(const char* page, int position) const {
    float sum = 0;
    for (int d = 0; d < a->head_dim; ++d) {
      sum = fmaf(widen(a->q, q + d), widen(page + tw_kv_k_offset(kDtype, a->head_dim, position, d), 0), sum);
    }
    return sum;
  }

  static constexpr int kGroups = 0, kColumns = TW_MAX_HEAD_DIM;
  float value_scale(const char*, int, int) const { return 1.0f; }
  static float value(const char* v, int d) { return widen(v, d); }
};

// The quantized caches read q of either dtype: element `at`, as float32.
float activation(const tw_attention_args* a, int64_t at) {
  return a->q_dtype == TW_BF16 ? Plain<TW_BF16>::widen(a->q, at) : Plain<TW_F32>::widen(a->q, at);
}

// Quantized reads a cache of 8-bit integers and quantizes q to 15 bits, so that the dot product is exact.
struct Quantized {
  const tw_attention_args* a;
  int32_t q[TW_MAX_INT_HEAD_DIM];
  float q_scale;

  Quantized(const tw_attention_args* args, int64_t at) : a(args) {
    float x[TW_MAX_INT_HEAD_DIM];
    for (int d = 0; d < a->head_dim; ++d) x[d] = activation(a, at + d);
    q_scale = quantize_head(x, a->head_dim, kQueryLevels, q);
  }

  float dot(const char* page, int position) const {
    int32_t sum = 0;
    for (int d = 0; d < a->head_dim; ++d) {
      sum += q[d] * *(const int8_t*)(page + tw_kv_k_offset(TW_I8, a->head_dim, position, d));
    }
    return (float)sum * q_scale *
           *(const float*)(page + tw_kv_k_scale_offset(TW_I8, a->head_dim, position, 0));
  }

  static constexpr int kGroups = 0, kColumns = TW_MAX_INT_HEAD_DIM;
  float value_scale(const char* page, int position, int) const {
    return *(const float*)(page + tw_kv_v_scale_offset(TW_I8, a->head_dim, a->block_size, position, 0));
  }
  static float value(const char* v, int d) { return (float)*(const int8_t*)(v + d); }
};

// Narrow reads a cache of 4-bit integers, whose groups have offsets, and quantizes q to 12 bits. A group's
// dot product of integers is exact; the offset meets the sum of q.
struct Narrow {
  const tw_attention_args* a;
  int32_t q[TW_MAX_INT_HEAD_DIM];
  float q_scale, q_sum[TW_MAX_KV_GROUPS];

  Narrow(const tw_attention_args* args, int64_t at) : a(args) {
    float x[TW_MAX_INT_HEAD_DIM];
    for (int d = 0; d < a->head_dim; ++d) x[d] = activation(a, at + d);
    q_scale = quantize_head(x, a->head_dim, kNarrowQueryLevels, q);
    for (int group = 0; group < tw_kv_scales(TW_I4, a->head_dim); ++group) {
      q_sum[group] = (float)sum_of_group(q, a->head_dim, group) * q_scale;
    }
  }

  static uint32_t word(const char* at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
  }
  static float scale_of(uint32_t word) { return from_bits(word & 0xffff0000u); }
  static float offset_of(uint32_t word) { return from_bits(word << 16); }

  float dot(const char* page, int position) const {
    float total = 0;
    for (int begin = 0; begin < a->head_dim; begin += TW_KV_GROUP) {
      const int group = begin / TW_KV_GROUP;
      int32_t sum = 0;
      for (int d = begin; d < begin + TW_KV_GROUP && d < a->head_dim; ++d) {
        const auto pair = (uint8_t)page[tw_kv_k_offset(TW_I4, a->head_dim, position, d)];
        sum += q[d] * (tw_kv_k_high(d) ? pair >> 4 : pair & 15);
      }
      const uint32_t bits = word(page + tw_kv_k_scale_offset(TW_I4, a->head_dim, position, group));
      total = fmaf((float)sum * q_scale, scale_of(bits), total);
      total = fmaf(q_sum[group], offset_of(bits), total);
    }
    return total;
  }

  static constexpr int kGroups = TW_MAX_KV_GROUPS, kColumns = TW_KV_GROUP;
  uint32_t value_word(const char* page, int position, int group) const {
    return word(page + tw_kv_v_scale_offset(TW_I4, a->head_dim, a->block_size, position, group));
  }
  float value_scale(const char* page, int position, int group) const {
    return scale_of(value_word(page, position, group));
  }
  static float value(const char* v, int d) {
    const auto pair = (uint8_t)v[tw_kv_v_offset(TW_I4, 0, 0, 0, d)];
    return (float)(tw_kv_v_high(d) ? pair >> 4 : pair & 15);
  }
};

struct Softmax {  // the softmax of one row over the tiles so far
  float max = -INFINITY;
  float sum[TW_LANES] = {0};
};

// Scores positions [position, position + 16) of a page. `ahead` is how far the first of them lies before or
// behind the query.
template <typename Cache>
void score_tile(const Cache& cache, const char* page, int position, uint32_t visible, const float* slope,
                int ahead, float* score) {
  const tw_attention_args* a = cache.a;
  for (int j = 0; j < TW_LANES; ++j) {
    if (!(visible >> j & 1)) continue;
    const float dot = cache.dot(page, position + j) * a->scale;
    score[j] = a->softcap != 0 ? a->softcap * tw_tanh(dot / a->softcap) : dot;
    if (slope) score[j] = fmaf(*slope, (float)(ahead + j), score[j]);
  }
}

// Turns the visible scores of a tile into weights. Returns the factor for the sums of the earlier tiles.
float soften_tile(Softmax& softmax, uint32_t visible, float* score) {
  float max = softmax.max;
  for (int j = 0; j < TW_LANES; ++j) {
    if (visible >> j & 1) max = max > score[j] ? max : score[j];
  }
  const float rescale = max == softmax.max ? 1.0f : tw_exp(softmax.max - max);
  softmax.max = max;
  for (int j = 0; j < TW_LANES; ++j) {
    softmax.sum[j] *= rescale;
    if (!(visible >> j & 1)) continue;
    score[j] = tw_exp(score[j] - max);
    softmax.sum[j] += score[j];
  }
  return rescale;
}

float tree_sum(float* lanes) {
  for (int step = TW_LANES / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

// Notes the maximum so far and the sum of a tile's visible weights, of which tile `at` of all rows has them.
void note_tile(const tw_attention_args* a, int64_t at, float max, uint32_t visible, const float* weight) {
  float lanes[TW_LANES];
  for (int j = 0; j < TW_LANES; ++j) lanes[j] = visible >> j & 1 ? weight[j] : 0.0f;
  a->tile_max[at] = max;
  a->tile_sum[at] = tree_sum(lanes);
}

// The sums of weights times offsets of V, for each group of columns, in the lanes of Softmax::sum.
template <int kGroups>
struct OffsetSums {
  float lanes[kGroups][TW_LANES] = {};

  template <typename Cache>
  void add_tile(const Cache& cache, const char* page, int position, uint32_t visible, float rescale,
                const float* weight) {
    for (int group = 0; group * Cache::kColumns < cache.a->v_dim; ++group) {
      for (int j = 0; j < TW_LANES; ++j) {
        lanes[group][j] *= rescale;
        if (!(visible >> j & 1)) continue;
        const float offset = Cache::offset_of(cache.value_word(page, position + j, group));
        lanes[group][j] = fmaf(weight[j], offset, lanes[group][j]);
      }
    }
  }
  void finish(int v_dim, float* acc) {
    for (int group = 0; group * TW_KV_GROUP < v_dim; ++group) {
      const float sum = tree_sum(lanes[group]);
      for (int d = group * TW_KV_GROUP; d < (group + 1) * TW_KV_GROUP && d < v_dim; ++d) acc[d] += sum;
    }
  }
};
template <>
struct OffsetSums<0> {
  template <typename Cache>
  void add_tile(const Cache&, const char*, int, uint32_t, float, const float*) {}
  void finish(int, float*) {}
};

// Adds one position's row of V, times its weight, to acc.
template <typename Cache>
void add_value(const Cache& cache, const char* page, int position, const char* v, float weight, float* acc) {
  const int v_dim = cache.a->v_dim;
  for (int group = 0; group * Cache::kColumns < v_dim; ++group) {
    const float p = weight * cache.value_scale(page, position, group);
    for (int d = group * Cache::kColumns; d < (group + 1) * Cache::kColumns && d < v_dim; ++d) {
      acc[d] = fmaf(p, Cache::value(v, d), acc[d]);
    }
  }
}

template <int kDtype, typename Cache>
void attend_row(const Cache& cache, int64_t row, const float* slope) {
  const tw_attention_args* a = cache.a;
  const int64_t rows = (int64_t)a->queries * a->group;
  float* acc = a->acc + row * a->v_dim;
  const int query = (int)(row / a->group);
  const int start = a->split * TW_ATTENTION_SPLIT - (a->first_position + query);
  const tw_visible range = tw_visible_positions(a, query);
  Softmax softmax;
  OffsetSums<Cache::kGroups> offsets;
  memset(acc, 0, (size_t)a->v_dim * sizeof *acc);
  for (int tile = 0; tile < TW_SPLIT_TILES; ++tile) {
    const uint32_t visible = tw_visible_in_tile(range, tile);
    if (!visible || tw_tile_is_gone(a, tile)) continue;
    int position;
    const char* page = tw_split_block(a, tile, &position);
    float weight[TW_LANES];
    score_tile(cache, page, position, visible, slope, start + tile * TW_LANES, weight);
    const float rescale = soften_tile(softmax, visible, weight);
    if (a->tile_sum) note_tile(a, tile * rows + row, softmax.max, visible, weight);
    for (int d = 0; d < a->v_dim; ++d) acc[d] *= rescale;
    offsets.add_tile(cache, page, position, visible, rescale, weight);
    for (int j = 0; j < TW_LANES; ++j) {
      if (!(visible >> j & 1)) continue;  // a slot that the row does not see may hold NaN, and 0 * NaN is NaN
      const char* v = tw_value_row(a, kDtype, page, position + j, tile * TW_LANES + j);
      add_value(cache, page, position + j, v, weight[j], acc);
    }
  }
  offsets.finish(a->v_dim, acc);
  a->max[row] = softmax.max + 0.0f;  // the sign of a zero must not depend on the order of comparisons
  a->sum[row] = tree_sum(softmax.sum);
}

template <int kDtype, typename Cache>
void attend(const tw_attention_args* a) {
  for (int query = 0; query < a->queries; ++query) {
    for (int head = 0; head < a->group; ++head) {
      const int64_t row = (int64_t)query * a->group + head;
      const Cache cache(a, query * a->q_stride + head * a->head_dim);
      attend_row<kDtype>(cache, row, a->slopes ? a->slopes + head : NULL);
    }
  }
}

}  // namespace

void attention_f32_scalar(const tw_attention_args* a) { attend<TW_F32, Plain<TW_F32>>(a); }
void attention_bf16_scalar(const tw_attention_args* a) { attend<TW_BF16, Plain<TW_BF16>>(a); }
void attention_i8_scalar(const tw_attention_args* a) { attend<TW_I8, Quantized>(a); }
void attention_i4_scalar(const tw_attention_args* a) { attend<TW_I4, Narrow>(a); }

void attention_shares_scalar(const tw_attention_shares_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    float top = -INFINITY, total = 0;
    for (int64_t at = row; at < a->tiles * a->stride; at += a->stride)
      top = top > a->max[at] ? top : a->max[at];
    for (int64_t at = row; at < a->tiles * a->stride; at += a->stride) {
      a->sum[at] *= tw_exp(a->max[at] - top);
      total += a->sum[at];
    }
    a->total[row] = total;
  }
}

void latent_values_scalar(const tw_latent_values_args* a) {
  const uint32_t* panel = (const uint32_t*)a->panel;
  uint32_t* rows = (uint32_t*)a->rows;
  for (int64_t j = 0; j < TW_LANES; ++j) {
    for (int64_t w = 0; w < a->words; ++w) rows[j * a->words + w] = panel[w * TW_LANES + j];
  }
}

// Splits in which a row sees nothing are left out, so the first split that counts is taken as it is.
void attention_combine_scalar(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int d = 0; d < a->v_dim; ++d) {
      Fold fold;
      float acc = 0, mine, other;
      for (int64_t split = 0; split < a->splits; ++split) {
        const int64_t at = split * a->rows + row;
        if (Fold::nothing(a->max[at], a->sum[at])) continue;
        const float value = a->acc[at * a->v_dim + d];
        const bool joined = fold.join(a->max[at], a->sum[at], &mine, &other);
        acc = joined ? fmaf(value, other, acc * mine) : value;
      }
      if (a->sinks) acc *= fold.sink(a->sinks[row]);
      const float y = acc / fold.sum;
      if (a->y_dtype == TW_BF16) {
        ((uint16_t*)a->y)[a->y_offsets[row] + d] = tw_f32_to_bf16(y);
      } else {
        ((float*)a->y)[a->y_offsets[row] + d] = y;
      }
    }
  }
}

}  // namespace tensorwright
