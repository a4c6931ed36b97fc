// The reference attention kernels: one (query, head) row at a time, one position at a time. The order of
// operations here is the definition that every other instruction set repeats.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plugins/common/bf16.h"
#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/visible.h"

namespace tensorwright {
namespace {

template <typename T>
float widen(T value);
template <>
inline float widen(float value) {
  return value;
}
template <>
inline float widen(uint16_t value) {
  return tw_bf16_to_f32(value);
}

constexpr int dtype_of(float) { return TW_F32; }
constexpr int dtype_of(uint16_t) { return TW_BF16; }

struct Softmax {  // of one row, over the tiles so far
  float max = -INFINITY;
  float sum[TW_LANES] = {0};
};

template <typename T>
void score_tile(const tw_attention_args* a, const T* q, const T* k, uint32_t visible, float* score) {
  constexpr int g = 4 / sizeof(T);
  for (int j = 0; j < TW_LANES; ++j) {
    if (!(visible >> j & 1)) continue;
    float dot = 0;
    for (int d = 0; d < a->head_dim; ++d) {
      dot = fmaf(widen(q[d]), widen(k[d / g * TW_LANES * g + j * g + d % g]), dot);
    }
    dot *= a->scale;
    score[j] = a->softcap != 0 ? a->softcap * tw_tanh(dot / a->softcap) : dot;
  }
}

// Turns the visible scores of a tile into weights; returns what the earlier tiles' sums must be multiplied
// with.
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

template <typename T>
void attend_row(const tw_attention_args* a, int query, const T* q, float* acc, float* max, float* sum) {
  const tw_visible range = tw_visible_positions(a, query);
  Softmax softmax;
  memset(acc, 0, (size_t)a->head_dim * sizeof *acc);
  for (int tile = range.begin / TW_LANES; tile * TW_LANES < range.end; ++tile) {
    const uint32_t visible = tw_visible_in_tile(range, tile);
    int position;
    const char* page = tw_split_block(a, tile, &position);
    const T* k = (const T*)(page + tw_kv_k_offset(dtype_of(T()), a->head_dim, position, 0));
    const T* v = (const T*)(page + tw_kv_v_offset(dtype_of(T()), a->head_dim, a->block_size, position, 0));
    float weight[TW_LANES];
    score_tile(a, q, k, visible, weight);
    const float rescale = soften_tile(softmax, visible, weight);
    for (int d = 0; d < a->head_dim; ++d) acc[d] *= rescale;
    for (int j = 0; j < TW_LANES; ++j, v += a->head_dim) {
      if (!(visible >> j & 1)) continue;  // such a slot may hold NaN, and 0 * NaN is NaN
      for (int d = 0; d < a->head_dim; ++d) acc[d] = fmaf(weight[j], widen(v[d]), acc[d]);
    }
  }
  *max = softmax.max + 0.0f;  // the sign of a zero must not depend on the order of comparisons
  *sum = tree_sum(softmax.sum);
}

template <typename T>
void attend(const tw_attention_args* a) {
  for (int query = 0; query < a->queries; ++query) {
    const T* q = (const T*)a->q + query * a->q_stride;
    for (int head = 0; head < a->group; ++head) {
      const int64_t row = (int64_t)query * a->group + head;
      attend_row(a, query, q + head * a->head_dim, a->acc + row * a->head_dim, a->max + row, a->sum + row);
    }
  }
}

}  // namespace

void attention_f32_scalar(const tw_attention_args* a) { attend<float>(a); }
void attention_bf16_scalar(const tw_attention_args* a) { attend<uint16_t>(a); }

// Splits in which a row sees nothing are left out, so the first that counts is taken as it is.
void attention_combine_scalar(const tw_attention_combine_args* a) {
  for (int64_t row = 0; row < a->rows; ++row) {
    for (int d = 0; d < a->head_dim; ++d) {
      Fold fold;
      float acc = 0, mine, other;
      for (int64_t split = 0; split < a->splits; ++split) {
        const int64_t at = split * a->rows + row;
        if (a->max[at] == -INFINITY) continue;
        const float value = a->acc[at * a->head_dim + d];
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
