// rotary_kv_write for an instruction set `Set` (Avx2, Avx512 or Neon): it rotates a register of pairs at a
// time, and writes K to the tile one 4-byte group at a time.
#ifndef TENSORWRIGHT_PLUGINS_ROTARY_VECTOR_H_
#define TENSORWRIGHT_PLUGINS_ROTARY_VECTOR_H_

#include <stdint.h>
#include <string.h>

#include "plugins/common/vector.h"
#include "plugins/paged_attention/quantize.h"
#include "plugins/rotary/kernel.h"

namespace {  // each including file gets its own copy, compiled with its own flags

// Writes `count` elements of one position, dimensions from d on, into a K tile. `tile` points at that
// position.
template <typename Set>
inline void put_k_f32(char* tile, int d, int count, typename Set::Vector value) {
  float element[Set::kLanes];
  Set::store(element, TW_F32, 0, Set::kLanes, value);
  float* to = (float*)tile + (int64_t)d * TW_LANES;
  for (int i = 0; i < count; ++i) to[i * TW_LANES] = element[i];
}

template <typename Set>
inline void put_k_bf16(char* tile, int d, int count, typename Set::Vector value) {
  uint16_t element[Set::kLanes];
  Set::store(element, TW_BF16, 0, Set::kLanes, value);
  int i = 0;
  if (d % 2 == 0) {
    uint32_t pair[Set::kLanes / 2];
    memcpy(pair, element, sizeof pair);
    uint32_t* to = (uint32_t*)tile + (int64_t)(d / 2) * TW_LANES;
    for (; i + 2 <= count; i += 2) to[i / 2 * TW_LANES] = pair[i / 2];
  }
  for (; i < count; ++i) ((uint16_t*)tile)[(int64_t)((d + i) / 2) * TW_LANES * 2 + (d + i) % 2] = element[i];
}

template <typename Set>
struct RowSink {  // q, or a row of V
  void* at;
  int dtype;
  void put(int d, int count, typename Set::Vector value) const { Set::store(at, dtype, d, count, value); }
};

template <typename Set>
struct TileSink {
  char* tile;
  int dtype;
  void put(int d, int count, typename Set::Vector value) const {
    if (dtype == TW_BF16) {
      put_k_bf16<Set>(tile, d, count, value);
    } else {
      put_k_f32<Set>(tile, d, count, value);
    }
  }
};

// Rotates dimensions [0, 2 * half) of one head, and copies the rest.
template <typename Set, typename Sink>
inline void rotate_head(const float* x, const float* table, int half, int head_dim, const Sink& sink) {
  const auto at_most = [](int count) { return count < Set::kLanes ? count : Set::kLanes; };
  for (int i = 0; i < half; i += Set::kLanes) {
    const int count = at_most(half - i);
    const auto first = Set::load(x + i, count), second = Set::load(x + half + i, count);
    const auto cosine = Set::load(table + i, count), sine = Set::load(table + half + i, count);
    sink.put(i, count, Set::sub(Set::mul(first, cosine), Set::mul(second, sine)));
    sink.put(half + i, count, Set::add(Set::mul(second, cosine), Set::mul(first, sine)));
  }
  for (int d = 2 * half; d < head_dim; d += Set::kLanes) {
    const int count = at_most(head_dim - d);
    sink.put(d, count, Set::load(x + d, count));
  }
}

template <typename Set>
inline void rotate_rows(const tw_rotary_kv_write_args* a) {
  const int half = a->rotary_dim / 2, dtype = a->q_dtype, bytes = (int)tw_dtype_bytes(dtype);
  const size_t head_bytes = tw_kv_head_bytes(a->kv_dtype, a->head_dim, a->block_size);
  for (int64_t t = 0; t < a->tokens; ++t) {
    const float* x = a->qkv + t * a->qkv_stride;
    const float* table = a->table + t * a->table_stride;
    char* q = (char*)a->q + t * a->q_stride * bytes;
    for (int h = 0; h < a->heads; ++h, x += a->head_dim) {
      rotate_head<Set>(x, table, half, a->head_dim,
                       RowSink<Set>{q + (int64_t)h * a->head_dim * bytes, dtype});
    }
    char* page = a->pages + a->slots[t] / a->block_size * a->page_bytes;
    const int position = a->slots[t] % a->block_size;
    const float* v = x + (int64_t)a->kv_heads * a->head_dim;
    for (int h = 0; h < a->kv_heads; ++h, x += a->head_dim, v += a->head_dim, page += head_bytes) {
      if (tw_kv_is_quantized(a->kv_dtype)) {
        float k[TW_MAX_INT_HEAD_DIM];
        rotate_head<Set>(x, table, half, a->head_dim, RowSink<Set>{k, TW_F32});
        put_quantized(page, a->kv_dtype, a->head_dim, a->block_size, position, k, v);
        continue;
      }
      const int kv_dtype = a->kv_dtype;
      char* tile = page + tw_kv_k_offset(kv_dtype, a->head_dim, position, 0);
      rotate_head<Set>(x, table, half, a->head_dim, TileSink<Set>{tile, kv_dtype});
      tw_kv_pad_k(page, kv_dtype, a->head_dim, position);
      char* row = page + tw_kv_v_offset(kv_dtype, a->head_dim, a->block_size, position, 0);
      rotate_head<Set>(v, table, 0, a->head_dim, RowSink<Set>{row, kv_dtype});
    }
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_ROTARY_VECTOR_H_
