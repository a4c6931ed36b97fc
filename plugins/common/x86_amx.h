// Tiles of AMX, as the kernels that use them share them. All of it is in an unnamed namespace, because this
// header is compiled under instruction-set flags and must not leak.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18; volume 2,
// LDTILECFG.
#ifndef TENSORWRIGHT_PLUGINS_COMMON_X86_AMX_H_
#define TENSORWRIGHT_PLUGINS_COMMON_X86_AMX_H_

#include <stdint.h>

#include "plugins/common/x86_avx512.h"

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;  // of a row
constexpr int kTiles = 8;

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // All tiles have rows of 64 bytes: 16 of them, but `few` in the tiles before `first_whole`.
  constexpr TileConfig(int few, int first_whole) {
    for (int tile = 0; tile < kTiles; ++tile) {
      row_bytes[tile] = (uint16_t)kTileBytes;
      rows[tile] = (uint8_t)(tile < first_whole ? few : (int)kTileRows);
    }
  }
};

constexpr TileConfig kAllTiles(kTileRows, 0);

// Returns how many of the `left` rows come next, `most` or fewer, so that no part after it has fewer rows
// than a tile has.
inline int64_t next_rows(int64_t left, int64_t most) {
  if (left <= most) return left;
  return left - kTileRows < most ? left - kTileRows : most;
}

// While it lives, the thread has tiles. Without it the processor keeps no state of them.
class Tiles {
 public:
  explicit Tiles(const TileConfig& config) {
    __asm__ volatile("" ::"m"(config));  // GCC's intrinsic says of the first 8 bytes only that they are read
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// GCC's intrinsics do not say that loads of tiles read memory.
inline void before_tile_loads() { __asm__ volatile("" ::: "memory"); }

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_COMMON_X86_AMX_H_
