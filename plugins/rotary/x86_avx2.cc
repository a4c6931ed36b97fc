// rotary_kv_write on AVX2: 8 pairs at a time; K elements go to their tile one 4-byte group at a time.
#include "plugins/common/x86_avx2.h"

#include <stdint.h>

#include "plugins/paged_attention/layout.h"
#include "plugins/rotary/kernel.h"

namespace tensorwright {
namespace {

// Writes `count` elements of one position, dimensions from d on, into a K tile. `tile` points at that
// position.
inline void put_k_f32(char* tile, int d, int count, __m256 value) {
  float element[TW_LANES_AVX2];
  _mm256_storeu_ps(element, value);
  float* to = (float*)tile + (int64_t)d * TW_LANES;
  for (int i = 0; i < count; ++i) to[i * TW_LANES] = element[i];
}

inline void put_k_bf16(char* tile, int d, int count, __m256 value) {
  uint16_t element[TW_LANES_AVX2];
  _mm_storeu_si128((__m128i*)element, tw_f32_to_bf16_avx2(value));
  int i = 0;
  if (d % 2 == 0) {
    uint32_t pair[TW_LANES_AVX2 / 2];
    memcpy(pair, element, sizeof pair);
    uint32_t* to = (uint32_t*)tile + (int64_t)(d / 2) * TW_LANES;
    for (; i + 2 <= count; i += 2) to[i / 2 * TW_LANES] = pair[i / 2];
  }
  for (; i < count; ++i) ((uint16_t*)tile)[(int64_t)((d + i) / 2) * TW_LANES * 2 + (d + i) % 2] = element[i];
}

struct RowSink {  // q, or a row of V
  void* at;
  int dtype;
  void put(int d, int count, __m256 value) const { tw_store_avx2(at, dtype, d, count, value); }
};

struct TileSink {
  char* tile;
  int dtype;
  void put(int d, int count, __m256 value) const {
    if (dtype == TW_BF16) {
      put_k_bf16(tile, d, count, value);
    } else {
      put_k_f32(tile, d, count, value);
    }
  }
};

inline int at_most_8(int count) { return count < TW_LANES_AVX2 ? count : (int)TW_LANES_AVX2; }

// One head: dimensions [0, 2 * half) rotate, the rest passes.
template <typename Sink>
inline void rotate_head(const float* x, const float* table, int half, int head_dim, const Sink& sink) {
  for (int i = 0; i < half; i += TW_LANES_AVX2) {
    const int count = at_most_8(half - i);
    const __m256 first = tw_load_avx2(x + i, count), second = tw_load_avx2(x + half + i, count);
    const __m256 cosine = tw_load_avx2(table + i, count), sine = tw_load_avx2(table + half + i, count);
    sink.put(i, count, _mm256_sub_ps(_mm256_mul_ps(first, cosine), _mm256_mul_ps(second, sine)));
    sink.put(half + i, count, _mm256_add_ps(_mm256_mul_ps(second, cosine), _mm256_mul_ps(first, sine)));
  }
  for (int d = 2 * half; d < head_dim; d += TW_LANES_AVX2) {
    const int count = at_most_8(head_dim - d);
    sink.put(d, count, tw_load_avx2(x + d, count));
  }
}

}  // namespace

void rotary_kv_write_avx2(const tw_rotary_kv_write_args* a) {
  const int half = a->rotary_dim / 2, dtype = a->q_dtype, bytes = (int)tw_dtype_bytes(dtype);
  const size_t head_bytes = tw_kv_head_bytes(dtype, a->head_dim, a->block_size);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float* x = a->qkv + t * a->qkv_stride;
    const float* table = a->table + t * a->table_stride;
    char* q = (char*)a->q + t * a->q_stride * bytes;
    for (int h = 0; h < a->heads; ++h, x += a->head_dim) {
      rotate_head(x, table, half, a->head_dim, RowSink{q + (int64_t)h * a->head_dim * bytes, dtype});
    }
    char* page = a->pages + a->slots[t] / a->block_size * a->page_bytes;
    const int position = a->slots[t] % a->block_size;
    const float* v = x + (int64_t)a->kv_heads * a->head_dim;
    for (int h = 0; h < a->kv_heads; ++h, x += a->head_dim, v += a->head_dim, page += head_bytes) {
      char* tile = page + tw_kv_k_offset(dtype, a->head_dim, position, 0);
      rotate_head(x, table, half, a->head_dim, TileSink{tile, dtype});
      char* row = page + tw_kv_v_offset(dtype, a->head_dim, a->block_size, position, 0);
      rotate_head(v, table, 0, a->head_dim, RowSink{row, dtype});
    }
  }
}

}  // namespace tensorwright
