// matmul for AMX-BF16. Rows are multiplied in tiles whatever their number, for tiles round in an order of
// their own: in a step of 32 columns the products of even columns are summed, and those of odd columns, and
// then both are added to the sum so far. A row has the same bits in any company.
//
//   fewer than 16 rows: for each unit of 4 panels, a tile with so many rows over the whole of K
//   else, for each unit of 4 panels, for each chunk of rows, for each 2 panels, for each block of K:
//     for 32 rows: 4 tiles of sums. The last tile of rows ends with the last row, and may begin among the
//     rows of the tile before.
//   then bias, activation, residual and rounding
//
// A step of a panel is a tile as it lies there: 16 lines of 16 rows with 2 columns each. A tile of x is 16
// rows with 32 columns. 4 products use 4 tiles of operands, so that loads take half of their time.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.
#include "plugins/common/x86_amx.h"

#include <string.h>

#include "plugins/matmul/x86_avx512_finish.h"

namespace {

constexpr int64_t kStep = kTileBytes / 2;               // columns
constexpr int64_t kStepLines = kTileRows * kLanes * 4;  // bytes of a panel
constexpr int64_t kChunkTiles = 12;                     // of rows
constexpr int64_t kBlockSteps = 32;                     // of K: two panels of a block fit the L1 cache
constexpr int64_t kSumStride = kUnit * kLanes;          // floats between rows of sums
constexpr int64_t kAheadLines = 4096;                   // bytes that few rows fetch ahead, of each panel

// Where a product begins: its rows of x and its panels, at a block of K.
struct Operands {
  const char* x[2];  // the first row of each tile
  int64_t x_stride;  // bytes
  const char* w;
  int64_t w_stride;  // bytes
  int64_t columns;   // of K, from here to the end of the block
};

// The last columns of x and the lines that they multiply, filled up with zeros to whole tiles.
struct Rest {
  alignas(64) char x[2][kTileRows][kTileBytes];
  alignas(64) char w[kUnit][kStepLines];
};

// Adds the products of a step to tiles 0 to 3: those of 2 tiles of rows with 1 or 2 panels.
template <int P>
inline void add_products(const char* x0, const char* x1, int64_t x_stride, const char* w, int64_t w_stride) {
  _tile_loadd(4, x0, x_stride);
  _tile_loadd(6, w, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, x1, x_stride);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (P == 2) {
    _tile_loadd(7, w + w_stride, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// The same for one tile of rows with up to 4 panels.
template <int P>
inline void add_products(const char* x, int64_t x_stride, const char* w, int64_t w_stride) {
  _tile_loadd(4, x, x_stride);
  _tile_loadd(5, w, 64);
  _tile_dpbf16ps(0, 4, 5);
  if constexpr (P > 1) {
    _tile_loadd(6, w + w_stride, 64);
    _tile_dpbf16ps(1, 4, 6);
  }
  if constexpr (P > 2) {
    _tile_loadd(7, w + 2 * w_stride, 64);
    _tile_dpbf16ps(2, 4, 7);
  }
  if constexpr (P > 3) {
    _tile_loadd(5, w + 3 * w_stride, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
}

// Copies the columns after the last whole step. rows: those of each tile.
template <int A>
void fill(Rest* rest, const Operands& o, int64_t rows, int64_t panels) {
  for (int a = 0; a < A; ++a)
    for (int64_t row = 0; row < rows; ++row)
      memcpy(rest->x[a][row], o.x[a] + row * o.x_stride, (size_t)o.columns * 2);
  for (int64_t p = 0; p < panels; ++p)
    memcpy(rest->w[p], o.w + p * o.w_stride, (size_t)((o.columns + 1) / 2) * 64);
  before_tile_loads();
}

template <int P>
void few_rows(Operands o, int64_t rows, float* sum) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (; o.columns >= kStep; o.columns -= kStep, o.x[0] += kTileBytes, o.w += kStepLines) {
    for (int p = 0; p < P; ++p)
      for (int64_t line = 0; line < kStepLines; line += 64)
        _mm_prefetch(o.w + p * o.w_stride + kAheadLines + line, _MM_HINT_T0);
    add_products<P>(o.x[0], o.x_stride, o.w, o.w_stride);
  }
  if (o.columns > 0) {
    Rest rest = {};
    fill<1>(&rest, o, rows, P);
    add_products<P>(rest.x[0][0], kTileBytes, rest.w[0], kStepLines);
  }
  _tile_stored(0, sum, kSumStride * 4);
  if constexpr (P > 1) _tile_stored(1, sum + kLanes, kSumStride * 4);
  if constexpr (P > 2) _tile_stored(2, sum + 2 * kLanes, kSumStride * 4);
  if constexpr (P > 3) _tile_stored(3, sum + 3 * kLanes, kSumStride * 4);
}

// Loads the sums of A tiles of rows and P panels, or begins with zeros.
template <int A, int P>
inline void take_sums(const float* sum, bool first) {
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    return;
  }
  before_tile_loads();
  _tile_loadd(0, sum, kSumStride * 4);
  if constexpr (P > 1) _tile_loadd(1, sum + kLanes, kSumStride * 4);
  if constexpr (A > 1) _tile_loadd(2, sum + kTileRows * kSumStride, kSumStride * 4);
  if constexpr (A > 1 && P > 1) _tile_loadd(3, sum + kTileRows * kSumStride + kLanes, kSumStride * 4);
}

template <int A, int P>
inline void store_sums(float* sum) {
  _tile_stored(0, sum, kSumStride * 4);
  if constexpr (P > 1) _tile_stored(1, sum + kLanes, kSumStride * 4);
  if constexpr (A > 1) _tile_stored(2, sum + kTileRows * kSumStride, kSumStride * 4);
  if constexpr (A > 1 && P > 1) _tile_stored(3, sum + kTileRows * kSumStride + kLanes, kSumStride * 4);
}

// Adds a block of K to the sums of A tiles of rows and P panels.
template <int A, int P>
void whole_tiles(Operands o, bool first, float* sum) {
  take_sums<A, P>(sum, first);
  for (; o.columns >= kStep; o.columns -= kStep, o.w += kStepLines) {
    if constexpr (A == 2) {
      add_products<P>(o.x[0], o.x[1], o.x_stride, o.w, o.w_stride);
      o.x[1] += kTileBytes;
    } else {
      add_products<P>(o.x[0], o.x_stride, o.w, o.w_stride);
    }
    o.x[0] += kTileBytes;
  }
  if (o.columns > 0) {
    Rest rest = {};
    fill<A>(&rest, o, kTileRows, P);
    if constexpr (A == 2) {
      add_products<P>(rest.x[0][0], rest.x[1][0], kTileBytes, rest.w[0], kStepLines);
    } else {
      add_products<P>(rest.x[0][0], kTileBytes, rest.w[0], kStepLines);
    }
  }
  store_sums<A, P>(sum);
}

int64_t panel_bytes(const tw_matmul_args* a) { return (int64_t)tw_panel_bytes(TW_BF16, (size_t)a->k); }

void matmul_of_few_rows(const tw_matmul_args* a) {
  static void (*const sums_of[kUnit])(Operands, int64_t, float*) = {few_rows<1>, few_rows<2>, few_rows<3>,
                                                                    few_rows<4>};
  const TileConfig config((int)a->rows, 5);  // the sums, and x
  const Tiles tiles(config);
  alignas(64) float sum[kTileRows * kSumStride];
  const int64_t stride = panel_bytes(a);
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    const char* x = (const char*)a->x;
    const Operands o = {{x, x}, a->x_stride * 2, (const char*)a->w + panel * stride, stride, a->k};
    sums_of[panels - 1](o, a->rows, sum);
    finish_for(a, panels)(a, 0, a->rows, panel, sum);
  }
}

// Sums a chunk of `rows` rows, from row `row`, and a unit of panels. Each tile of rows has 16 rows of sums.
void sum_chunk(const tw_matmul_args* a, int64_t row, int64_t rows, int64_t panel, int64_t panels,
               float* sum) {
  const int64_t w_stride = panel_bytes(a), x_stride = a->x_stride * 2, tiles = ceil_div(rows, kTileRows);
  const char* x = (const char*)a->x + row * x_stride;
  for (int64_t p = 0; p < panels; p += 2) {
    const char* w = (const char*)a->w + (panel + p) * w_stride;
    int64_t begin = 0;
    do {
      const int64_t columns = at_most(kBlockSteps * kStep, a->k - begin);
      for (int64_t tile = 0; tile < tiles; tile += 2) {
        Operands o = {{}, x_stride, w + begin * kLanes * 2, w_stride, columns};
        for (int64_t i = 0; i < 2; ++i)
          o.x[i] = x + at_most((tile + i) * kTileRows, rows - kTileRows) * x_stride + begin * 2;
        float* at = sum + tile * kTileRows * kSumStride + p * kLanes;
        const bool first = begin == 0, pair = panels - p > 1;
        if (tiles - tile > 1) {
          pair ? whole_tiles<2, 2>(o, first, at) : whole_tiles<2, 1>(o, first, at);
        } else {
          pair ? whole_tiles<1, 2>(o, first, at) : whole_tiles<1, 1>(o, first, at);
        }
      }
      begin += columns;
    } while (begin < a->k);
  }
}

void matmul_of_tiles(const tw_matmul_args* a) {
  const Tiles tiles(kAllTiles);
  alignas(64) float sum[kChunkTiles * kTileRows * kSumStride];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    for (int64_t row = 0; row < a->rows;) {
      const int64_t rows = next_rows(a->rows - row, kChunkTiles * kTileRows),
                    whole = rows / kTileRows * kTileRows;
      sum_chunk(a, row, rows, panel, panels, sum);
      finish_for(a, panels)(a, row, whole, panel, sum);
      // The last tile began with a row that has been finished already.
      if (whole < rows)
        finish_for(a, panels)(a, row + whole, rows - whole, panel,
                              sum + (whole + kTileRows - (rows - whole)) * kSumStride);
      row += rows;
    }
  }
}

}  // namespace

extern "C" void tw_matmul_bf16_amx(const tw_matmul_args* a) {
  if (a->rows <= 0) return;
  a->rows < kTileRows ? matmul_of_few_rows(a) : matmul_of_tiles(a);
}
