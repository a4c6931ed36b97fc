// Loops that reach the peak of products of tiles.
#include "plugins/common/x86_amx.h"

#include "plugins/common/ceilings.h"

namespace {

// Makes tiles 4 to 7 hold `unit` everywhere, and 0 to 3 zeros.
void begin(int32_t unit) {
  alignas(64) int32_t ones[kTileRows * kTileBytes / 4];
  for (int32_t& one : ones) one = unit;
  before_tile_loads();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, kTileBytes);
  _tile_loadd(5, ones, kTileBytes);
  _tile_loadd(6, ones, kTileBytes);
  _tile_loadd(7, ones, kTileBytes);
}

int32_t first_sum() {
  alignas(64) int32_t sums[kTileRows * kTileBytes / 4];
  _tile_stored(0, sums, kTileBytes);
  return sums[0];
}

}  // namespace

extern "C" float tw_ceiling_int8_amx(int64_t iterations) {
  const Tiles tiles(kAllTiles);
  begin(0x01010101);
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return (float)first_sum();
}

extern "C" float tw_ceiling_bf16_amx(int64_t iterations) {
  const Tiles tiles(kAllTiles);
  begin(0x3f803f80);
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return (float)first_sum();
}
