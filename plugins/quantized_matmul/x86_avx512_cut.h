// Cuts a quantized matmul of AVX-512 into chunks of rows and units of panels.
//
//   for each unit of 4 panels, for each chunk of rows:
//     for P panels, for R rows of the chunk: a tile in registers, over the whole of K (x86_avx512_tile.h)
//   then bias, activation, residual and rounding for the chunk
//
// Few rows take many panels at once, because they wait for memory. Many rows take one panel, because each
// row's share of the work on weights is then smallest.
#ifndef TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_CUT_H_
#define TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_CUT_H_

#include "plugins/matmul/x86_avx512_finish.h"
#include "plugins/quantized_matmul/kernel.h"
#include "plugins/quantized_matmul/x86_avx512_sparse.h"
#include "plugins/quantized_matmul/x86_avx512_steps.h"
#include "plugins/quantized_matmul/x86_avx512_tile.h"

namespace {  // each including file gets its own copy, compiled with its own flags

constexpr int64_t kMostRows = 16;           // of a tile
constexpr int64_t kAheadBytes = 128 << 10;  // panels further off than this are not fetched ahead

typedef void (*Micro)(const Tile*);

// Returns the micro kernel of R rows and P panels, if its tile fits the registers.
template <class Of, int R, int P>
constexpr Micro tile() {
  if constexpr (R <= Of::kRows && R * P <= Of::kTile) {
    return Of::template run<R, P>;
  } else {
    return nullptr;
  }
}

template <class Of, int P>
Micro tile_of(int64_t rows) {
  static const Micro table[kMostRows] = {
      tile<Of, 1, P>(),  tile<Of, 2, P>(),  tile<Of, 3, P>(),  tile<Of, 4, P>(),
      tile<Of, 5, P>(),  tile<Of, 6, P>(),  tile<Of, 7, P>(),  tile<Of, 8, P>(),
      tile<Of, 9, P>(),  tile<Of, 10, P>(), tile<Of, 11, P>(), tile<Of, 12, P>(),
      tile<Of, 13, P>(), tile<Of, 14, P>(), tile<Of, 15, P>(), tile<Of, 16, P>()};
  return table[rows - 1];
}

template <class Of>
Micro tile_of(int64_t rows, int64_t panels) {
  switch (panels) {
    case 1:
      return tile_of<Of, 1>(rows);
    case 2:
      return tile_of<Of, 2>(rows);
    case 3:
      return tile_of<Of, 3>(rows);
    default:
      return tile_of<Of, 4>(rows);
  }
}

// Returns 4, 2 or 1, because units have 4 panels.
int64_t panels_at_once(int64_t rows, int64_t most) { return rows * 4 <= most ? 4 : rows * 2 <= most ? 2 : 1; }

// Computes the sums of a chunk of rows and a unit of panels in registers, by the micro kernels of Of.
template <class Of>
struct Registers {
  static constexpr int64_t kChunk = 48;  // rows whose sums stay in the L1 cache

  static void sum_chunk(const Tile& first, int64_t rows, int64_t panels, float* sum) {
    const int64_t passes = ceil_div(rows, Of::kRows);
    const int64_t at_once = panels_at_once(ceil_div(rows, passes), Of::kTile);
    for (int64_t p = 0; p < panels; p += at_once) {
      const int64_t width = at_most(at_once, panels - p);
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t row = rows * pass / passes, count = rows * (pass + 1) / passes - row;
        Tile t = first;
        t.x += row * t.x_stride;
        t.x_scale += row;
        t.x_sum += row;
        t.w += p * t.w_stride;
        t.ahead = t.w_stride * at_once > kAheadBytes ? 0 : t.w_stride * at_once;
        t.sum = sum + (row * kUnit + p) * kLanes;
        tile_of<Of>(count, width)(&t);
      }
    }
  }
};

// Sums: Registers, or what else computes the sums of a chunk.
template <class Sums>
void matmul(const tw_quantized_matmul_args* args, int dtype) {
  const tw_matmul_args* a = &args->matmul;
  Tile t = {};
  t.x_stride = a->x_stride;
  t.group_stride = args->group_stride;
  t.w_stride = tw_quantized_panel_bytes(dtype, a->k, args->group);
  t.groups = tw_quantized_groups(a->k, args->group);
  t.lines = tw_quantized_group_bytes(dtype, a->k, args->group) / 64;
  alignas(64) float sum[Sums::kChunk * kUnit * kLanes];
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    const int64_t panels = at_most(kUnit, a->panel_end - panel);
    t.w = (const char*)a->w + panel * t.w_stride;
    for (int64_t row = 0; row < a->rows; row += Sums::kChunk) {
      const int64_t rows = at_most(Sums::kChunk, a->rows - row);
      t.x = (const int8_t*)a->x + row * t.x_stride;
      t.x_scale = args->x_scale + row;
      t.x_sum = args->x_sum + row;
      Sums::sum_chunk(t, rows, panels, sum);
      finish_for(a, panels)(a, row, rows, panel, sum);
    }
  }
}

// Decodes groups [begin, end) of a unit of panels, and adds them to the sums of rows.
template <class Sums, int kDtype>
void sum_block(const tw_quantized_matmul_args* args, const Tile& first, int64_t row, int64_t rows,
               int64_t panel, int64_t begin, int64_t end) {
  const tw_matmul_args* a = &args->matmul;
  alignas(64) char decoded[kUnit * kDecodedPanel];
  const int64_t panels = at_most(kUnit, a->panel_end - panel);
  for (int64_t p = 0; p < panels; ++p)
    decode_panel<kDtype>(args, first.w + p * first.w_stride, begin, end, decoded + p * kDecodedPanel);
  Tile t = first;
  t.w = decoded;
  t.w_stride = kDecodedPanel;
  t.lines = (end - begin) * args->group / 4;
  for (int64_t done = 0; done < rows; done += Sums::kChunk) {
    const int64_t at = row + done, count = at_most(Sums::kChunk, rows - done);
    float* sum = first.sum + done * kUnit * kLanes;
    t.x = (const int8_t*)a->x + at * t.x_stride + begin * args->group;
    t.x_scale = args->x_scale + at;
    t.x_sum = args->x_sum + at;
    Sums::sum_chunk(t, count, panels, sum);
    if (t.last) finish_for(a, panels)(a, at, count, panel, sum);
  }
}

// Computes many rows of weights with steps: a block of K is decoded once for all of them.
template <class Sums, int kDtype>
void matmul_in_blocks(const tw_quantized_matmul_args* args) {
  const tw_matmul_args* a = &args->matmul;
  const int64_t groups = tw_quantized_groups(a->k, args->group);
  const int64_t blocks = ceil_div(groups * args->group, kBlockColumns);
  alignas(64) float sum[kRowsOfBlocks * kUnit * kLanes];
  Tile t = {};
  t.x_stride = a->x_stride;
  t.w_stride = tw_quantized_panel_bytes(kDtype, a->k, args->group);
  t.sum = sum;
  for (int64_t panel = a->panel_begin; panel < a->panel_end; panel += kUnit) {
    t.w = (const char*)a->w + panel * t.w_stride;
    for (int64_t row = 0; row < a->rows; row += kRowsOfBlocks) {
      for (int64_t block = 0; block < blocks; ++block) {
        t.first = block == 0, t.last = block + 1 == blocks;
        sum_block<Sums, kDtype>(args, t, row, at_most(kRowsOfBlocks, a->rows - row), panel,
                                groups * block / blocks, groups * (block + 1) / blocks);
      }
    }
  }
}

// The kernel of one dtype. Few rows of weights with steps are decoded in registers.
template <int kDtype>
void run_in_registers(const tw_quantized_matmul_args* a) {
  if constexpr (tw_has_steps(kDtype)) {
    a->matmul.rows <= kMostRows ? matmul<Registers<Stepped<kDtype>>>(a, kDtype)
                                : matmul_in_blocks<Registers<Blocks>, kDtype>(a);
  } else if constexpr (tw_codec(kDtype).sparse) {
    matmul<Registers<SparseGrouped<kDtype>>>(a, kDtype);
  } else {
    tw_quantizes(kDtype, 0) && a->group == 0 ? matmul<Registers<Whole>>(a, kDtype)
                                             : matmul<Registers<Grouped<kDtype>>>(a, kDtype);
  }
}

}  // namespace

#endif  // TENSORWRIGHT_PLUGINS_QUANTIZED_MATMUL_X86_AVX512_CUT_H_
