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

  float value_scale(const char*, int) const { return 1.0f; }
  static float value(const char* v) { return widen(v, 0); }
};

// Quantized reads a cache of 8-bit integers and quantizes q to 15 bits, so that the dot product is exact.
struct Quantized {
  const tw_attention_args* a;
  int32_t q[TW_MAX_I8_HEAD_DIM];
  float q_scale;

  Quantized(const tw_attention_args* args, int64_t at) : a(args) {
    float x[TW_MAX_I8_HEAD_DIM];
    for (int d = 0; d < a->head_dim; ++d) {
      x[d] = a->q_dtype == TW_BF16 ? Plain<TW_BF16>::widen(a->q, at + d) : Plain<TW_F32>::widen(a->q, at + d);
    }
    q_scale = quantize_head(x, a->head_dim, kQueryLevels, q);
  }

  float dot(const char* page, int position) const {
    int32_t sum = 0;
    for (int d = 0; d < a->head_dim; ++d) {
      sum += q[d] * *(const int8_t*)(page + tw_kv_k_offset(TW_I8, a->head_dim, position, d));
    }
    return (float)sum * q_scale * *(const float*)(page + tw_kv_k_scale_offset(a->head_dim, position));
  }

  float value_scale(const char* page, int position) const {
    return *(const float*)(page + tw_kv_v_scale_offset(a->head_dim, a->block_size, position));
  }
  static float value(const char* v) { return (float)*(const int8_t*)v; }
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

template <int kDtype, typename Cache>
void attend_row(const Cache& cache, int query, const float* slope, float* acc, float* max, float* sum) {
  const tw_attention_args* a = cache.a;
  const int start = a->split * TW_ATTENTION_SPLIT - (a->first_position + query);
  const tw_visible range = tw_visible_positions(a, query);
  const size_t bytes = tw_dtype_bytes(kDtype);
  Softmax softmax;
  memset(acc, 0, (size_t)a->v_dim * sizeof *acc);
  for (int tile = range.begin / TW_LANES; tile * TW_LANES < range.end; ++tile) {
    const uint32_t visible = tw_visible_in_tile(range, tile);
    int position;
    const char* page = tw_split_block(a, tile, &position);
    float weight[TW_LANES];
    score_tile(cache, page, position, visible, slope, start + tile * TW_LANES, weight);
    const float rescale = soften_tile(softmax, visible, weight);
    for (int d = 0; d < a->v_dim; ++d) acc[d] *= rescale;
    for (int j = 0; j < TW_LANES; ++j) {
      if (!(visible >> j & 1)) continue;  // a slot that the row does not see may hold NaN, and 0 * NaN is NaN
      const char* v = tw_value_row(a, kDtype, page, position + j, tile * TW_LANES + j);
      const float p = weight[j] * cache.value_scale(page, position + j);
      for (int d = 0; d < a->v_dim; ++d) acc[d] = fmaf(p, Cache::value(v + (size_t)d * bytes), acc[d]);
    }
  }
  *max = softmax.max + 0.0f;  // the sign of a zero must not depend on the order of comparisons
  *sum = tree_sum(softmax.sum);
}

template <int kDtype, typename Cache>
void attend(const tw_attention_args* a) {
  for (int query = 0; query < a->queries; ++query) {
    for (int head = 0; head < a->group; ++head) {
      const int64_t row = (int64_t)query * a->group + head;
      const Cache cache(a, query * a->q_stride + head * a->head_dim);
      const float* slope = a->slopes ? a->slopes + head : NULL;
      attend_row<kDtype>(cache, query, slope, a->acc + row * a->v_dim, a->max + row, a->sum + row);
    }
  }
}

}  // namespace

void attention_f32_scalar(const tw_attention_args* a) { attend<TW_F32, Plain<TW_F32>>(a); }
void attention_bf16_scalar(const tw_attention_args* a) { attend<TW_BF16, Plain<TW_BF16>>(a); }
void attention_i8_scalar(const tw_attention_args* a) { attend<TW_I8, Quantized>(a); }

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
