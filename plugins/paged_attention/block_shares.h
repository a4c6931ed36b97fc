// Adds up, for each block of keys, its shares of the softmax of rows (runtime/core/ops/kept_blocks.h).
#ifndef TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BLOCK_SHARES_H_
#define TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BLOCK_SHARES_H_

#include <cstdint>

namespace tensorwright {

// What attention kernels have left of some rows. Each row is one (query, head).
struct RowShares {
  int32_t rows = 0;
  int32_t splits = 0;
  int32_t block_size = 0;            // positions in a block, a multiple of 16
  const int32_t* numbers = nullptr;  // [splits]: which split of the sequence each is, ascending
  const float* max = nullptr;        // [splits, rows], as in tw_attention_args
  const float* sum = nullptr;        // [splits, rows]
  const float* tile_max = nullptr;   // [splits, TW_SPLIT_TILES, rows]
  const float* tile_sum = nullptr;   // [splits, TW_SPLIT_TILES, rows]: 0 for tiles that no row sees
  const float* sinks = nullptr;      // [rows], or null: scores without a value that join each softmax
};

// Adds to scores[block] the sum over the rows of the block's share of the row's softmax, in units of 2^-32. A
// share that is NaN counts nothing. Other threads may add to the same scores meanwhile; the result is the
// same in any order.
void add_shares(const RowShares& shares, uint64_t* scores);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_PLUGINS_PAGED_ATTENTION_BLOCK_SHARES_H_
