// A model of AMX tiles, bit for bit, for processors without them: included before the AMX kernels, it takes
// the place of the compiler's intrinsics. Like the processor it refuses what is not allowed: tiles that are
// not configured, more rows or bytes than a tile has, shapes that do not fit each other. Source: Intel 64 and
// IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG to TILEZERO.
#ifndef TENSORWRIGHT_TESTS_SUPPORT_AMX_BY_MODEL_H_
#define TENSORWRIGHT_TESTS_SUPPORT_AMX_BY_MODEL_H_

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A product has sixteen thousand steps, and the kernels beside it are compiled without optimization.
#pragma GCC push_options
#pragma GCC optimize("O1")

namespace amx_model {
namespace {  // it is compiled with flags of an instruction set, and must not leak

struct Tile {
  int rows = 0, bytes = 0;  // of a row
  uint8_t data[16][64] = {};
};

struct Unit {
  bool configured = false;
  Tile tiles[8];
  long products = 0;  // since the program began
};

thread_local Unit unit;

void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "amx: %s\n", what);
  abort();
}

Tile& tile(int number) {
  require(unit.configured, "a tile is used that is not configured");
  return unit.tiles[number];
}

void configure(const void* from) {
  uint8_t bytes[64];
  memcpy(bytes, from, 64);
  require(bytes[0] == 1 && bytes[1] == 0, "the palette must be 1, and the first row 0");
  for (int i = 2; i < 16; ++i) require(bytes[i] == 0, "a reserved byte is not 0");
  for (int i = 0; i < 16; ++i) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
    const int rows = bytes[48 + i];
    if (i >= 8) {
      require(row_bytes == 0 && rows == 0, "there are 8 tiles");
      continue;
    }
    require(row_bytes <= 64 && rows <= 16 && (row_bytes == 0) == (rows == 0), "a tile is too large");
    unit.tiles[i] = {rows, row_bytes, {}};
  }
  unit.configured = true;
}

void release() { unit = {false, {}, unit.products}; }

void zero(int number) { memset(tile(number).data, 0, sizeof(Tile::data)); }

void load(int number, const void* base, long stride) {
  Tile& t = tile(number);
  memset(t.data, 0, sizeof t.data);
  for (int row = 0; row < t.rows; ++row)
    memcpy(t.data[row], (const char*)base + row * stride, (size_t)t.bytes);
}

void store(int number, void* base, long stride) {
  const Tile& t = tile(number);
  for (int row = 0; row < t.rows; ++row) memcpy((char*)base + row * stride, t.data[row], (size_t)t.bytes);
}

void require_shapes(int to, int first, int second) {
  const Tile &a = tile(first), &b = tile(second), &c = tile(to);
  require(to != first && to != second && first != second, "operands of a product must differ");
  require(a.rows == c.rows && b.bytes == c.bytes && a.bytes == 4 * b.rows && c.bytes % 4 == 0,
          "shapes of a product do not fit");
}

// kUnsigned: the bytes of the second operand are unsigned.
template <bool kUnsigned>
void multiply(int to, int first, int second) {
  Tile& c = tile(to);
  const Tile &a = tile(first), &b = tile(second);
  require_shapes(to, first, second);
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.bytes / 4; ++n) {
      uint32_t sum;  // it wraps, as the processor's does
      memcpy(&sum, c.data[m] + 4 * n, 4);
      for (int k = 0; k < b.rows; ++k) {
        for (int i = 0; i < 4; ++i) {
          const uint8_t byte = b.data[k][4 * n + i];
          const int w = kUnsigned ? byte : (int8_t)byte;
          sum += (uint32_t)((int8_t)a.data[m][4 * k + i] * w);
        }
      }
      memcpy(c.data[m] + 4 * n, &sum, 4);
    }
  }
  ++unit.products;
}

// a * b + c, rounded once to the nearest; numbers too small for float32's usual form are zeros.
float fused(float a, float b, float c) {
  const auto flushed = [](float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; };
  return flushed(fmaf(flushed(a), flushed(b), flushed(c)));
}

float widened(const uint8_t* bf16) {
  uint16_t half;
  memcpy(&half, bf16, 2);
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Pairs of columns: even ones and odd ones are summed apart, in ascending order.
[[maybe_unused]] void multiply_bf16(int to, int first, int second) {
  Tile& c = tile(to);
  const Tile &a = tile(first), &b = tile(second);
  require_shapes(to, first, second);
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.bytes / 4; ++n) {
      float part[2] = {0, 0}, sum;
      for (int k = 0; k < b.rows; ++k)
        for (int i = 0; i < 2; ++i)
          part[i] = fused(widened(a.data[m] + 4 * k + 2 * i), widened(b.data[k] + 4 * n + 2 * i), part[i]);
      memcpy(&sum, c.data[m] + 4 * n, 4);
      sum = fused(1, fused(1, part[0], part[1]), sum);
      memcpy(c.data[m] + 4 * n, &sum, 4);
    }
  }
  ++unit.products;
}

}  // namespace
}  // namespace amx_model

#pragma GCC pop_options

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig amx_model::configure
#define _tile_release amx_model::release
#define _tile_zero amx_model::zero
#define _tile_loadd amx_model::load
#define _tile_stored amx_model::store
#define _tile_dpbssd amx_model::multiply<false>
#define _tile_dpbsud amx_model::multiply<true>
#define _tile_dpbf16ps amx_model::multiply_bf16

#endif  // TENSORWRIGHT_TESTS_SUPPORT_AMX_BY_MODEL_H_
