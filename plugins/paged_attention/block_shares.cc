#include "plugins/paged_attention/block_shares.h"

#include <algorithm>
#include <atomic>

#include "plugins/paged_attention/fold.h"
#include "plugins/paged_attention/visible.h"

namespace tensorwright {
namespace {

constexpr float kUnits = 4294967296.0f;  // of one whole share

// Returns the softmax of a row over all splits, folded as the combine kernels fold it.
Fold whole_row(const RowShares& shares, int64_t row) {
  Fold fold;
  float mine, other;
  for (int64_t split = 0; split < shares.splits; ++split) {
    const int64_t at = split * shares.rows + row;
    if (!Fold::nothing(shares.max[at], shares.sum[at]))
      fold.join(shares.max[at], shares.sum[at], &mine, &other);
  }
  if (shares.sinks) fold.sink(shares.sinks[row]);
  return fold;
}

}  // namespace

void add_shares(const RowShares& shares, uint64_t* scores) {
  constexpr int32_t kRows = 64;  // rows whose softmax is known at a time
  for (int32_t begin = 0; begin < shares.rows; begin += kRows) {
    const int32_t count = std::min(kRows, shares.rows - begin);
    Fold whole[kRows];
    for (int32_t row = 0; row < count; ++row) whole[row] = whole_row(shares, begin + row);
    for (int64_t split = 0; split < shares.splits; ++split) {
      uint64_t units[TW_SPLIT_TILES] = {};
      for (int32_t tile = 0; tile < TW_SPLIT_TILES; ++tile) {
        const int64_t at = (split * TW_SPLIT_TILES + tile) * shares.rows + begin;
        for (int32_t row = 0; row < count; ++row) {
          if (!(shares.tile_sum[at + row] > 0)) continue;
          const float grown = tw_exp(shares.tile_max[at + row] - whole[row].max);
          const float share = shares.tile_sum[at + row] * grown / whole[row].sum;
          if (share > 0) units[tile] += static_cast<uint64_t>(std::min(share, 1.0f) * kUnits);
        }
      }
      for (int32_t tile = 0; tile < TW_SPLIT_TILES; ++tile) {
        if (units[tile] == 0) continue;
        const int64_t position = int64_t{shares.numbers[split]} * TW_ATTENTION_SPLIT + tile * TW_LANES;
        const std::atomic_ref<uint64_t> score(scores[position / shares.block_size]);
        score.fetch_add(units[tile], std::memory_order_relaxed);
      }
    }
  }
}

}  // namespace tensorwright
