// Says which positions of a split a query sees, and where the split's tiles lie in the pages, for the
// attention kernels of every instruction set.
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VISIBLE_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VISIBLE_H_

#include "plugins/common/exp.h"
#include "plugins/common/tanh.h"
#include "plugins/paged_attention/kernel.h"
#include "runtime/core/base/first_seen.h"

enum { TW_SPLIT_TILES = (int)TW_ATTENTION_SPLIT / (int)TW_LANES };

// Positions [begin, end) of the window, empty if end <= begin, and [0, sinks) of sink tokens, counted from
// the start of the split.
typedef struct tw_visible {
  int32_t begin, end, sinks;
} tw_visible;

// Returns the first position that a query sees, sink tokens aside, counted from the start of the split. Later
// queries do not see what comes before that of query 0, sink tokens aside.
static inline int64_t tw_first_visible(const tw_attention_args* a, int32_t query) {
  const int64_t position = (int64_t)a->first_position + query;
  return tw_first_seen(position, a->window, a->chunked) - (int64_t)a->split * TW_ATTENTION_SPLIT;
}

static inline tw_visible tw_visible_positions(const tw_attention_args* a, int32_t query) {
  const int64_t start = (int64_t)a->split * TW_ATTENTION_SPLIT, position = (int64_t)a->first_position + query;
  int64_t begin = tw_first_visible(a, query), end = position + 1 - start;
  if (begin < 0) begin = 0;
  if (end > TW_ATTENTION_SPLIT) end = TW_ATTENTION_SPLIT;
  int64_t sinks = a->sink_tokens - start;
  if (sinks > end) sinks = end;
  tw_visible visible = {0, 0, sinks > 0 ? (int32_t)sinks : 0};
  if (begin < end) visible.begin = (int32_t)begin, visible.end = (int32_t)end;
  return visible;
}

// Returns a mask of the bits j for which position 16 * tile + j of the split lies in [begin, end).
static inline uint32_t tw_range_in_tile(int32_t begin, int32_t end, int32_t tile) {
  begin -= tile * TW_LANES, end -= tile * TW_LANES;
  if (end <= 0 || begin >= TW_LANES) return 0;
  const uint32_t below_end = end >= TW_LANES ? 0xffffu : (1u << end) - 1u;
  const uint32_t below_begin = begin <= 0 ? 0u : (1u << begin) - 1u;
  return below_end & ~below_begin;
}

// Returns a mask whose bit j says that the query sees position 16 * tile + j of the split.
static inline uint16_t tw_visible_in_tile(tw_visible visible, int32_t tile) {
  const uint32_t window = tw_range_in_tile(visible.begin, visible.end, tile);
  return (uint16_t)(window | tw_range_in_tile(0, visible.sinks, tile));
}

// Returns whether rows may see tiles that have others between them which no row sees.
static inline int tw_has_holes(const tw_attention_args* a) { return a->sink_tokens > 0 || a->gone; }

// Returns whether the block of a tile was forgotten, so that no query sees it.
static inline int tw_tile_is_gone(const tw_attention_args* a, int32_t tile) {
  if (!a->gone) return 0;
  return a->gone[((int64_t)a->split * TW_ATTENTION_SPLIT + tile * TW_LANES) / a->block_size];
}

// Returns whether some query sees a tile of the split. The pages of all other tiles may be gone.
static inline int tw_tile_exists(const tw_attention_args* a, int32_t tile) {
  const int64_t start = (int64_t)a->split * TW_ATTENTION_SPLIT + tile * TW_LANES;
  if (start >= (int64_t)a->first_position + a->queries || tw_tile_is_gone(a, tile)) return 0;
  const int64_t first = tw_first_seen(a->first_position, a->window, a->chunked);
  return start < a->sink_tokens || start + TW_LANES > first;
}

static inline const char* tw_split_block(const tw_attention_args* a, int32_t tile,
                                         int32_t* position_in_block) {
  const int64_t position = (int64_t)a->split * TW_ATTENTION_SPLIT + tile * TW_LANES;
  *position_in_block = (int32_t)(position % a->block_size);
  return a->pages + a->block_table[position / a->block_size] * a->page_bytes;
}

// Returns a row of V: of position `position` of a page, which is position `in_split` of the split.
static inline const char* tw_value_row(const tw_attention_args* a, int dtype, const char* page,
                                       int32_t position, int32_t in_split) {
  if (a->v_rows) return a->v_rows + (size_t)in_split * (size_t)a->v_dim * tw_dtype_bytes(dtype);
  return page + tw_kv_v_offset(dtype, a->head_dim, a->block_size, position, 0);
}

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_VISIBLE_H_
