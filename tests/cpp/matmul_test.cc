// matmul through its table, without Python: exact small cases, range joins, and the packed layout.
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/matmul/kernels.h"
#include "plugins/matmul/tiling.h"
#include "plugins/quantized_matmul/kernels.h"
#include "runtime/bindings/testing/panels.h"
#include "runtime/core/base/error.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

constexpr int kRows = 7, kN = 37, kK = 11;

// Small integers: every sum is exact in every dtype and order.
float x_at(int row, int k) { return static_cast<float>((row * 3 + k * 5) % 7 - 3); }
float w_at(int row, int k) { return static_cast<float>((row * 2 + k * 3) % 5 - 2); }

float exact(int row, int n) {
  float sum = 0;
  for (int k = 0; k < kK; ++k) sum += x_at(row, k) * w_at(n, k);
  return sum;
}

struct Operands {
  std::vector<float> w;
  std::vector<char> x, packed;

  explicit Operands(int dtype) {
    std::vector<float> rows;
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kK; ++k) rows.push_back(x_at(row, k));
    }
    for (int n = 0; n < kN; ++n) {
      for (int k = 0; k < kK; ++k) w.push_back(w_at(n, k));
    }
    const auto size = static_cast<size_t>(panels_of(kN)) * tw_panel_bytes(dtype, kK);
    packed.resize(size);
    pack_panels(dtype, {w.data(), TW_F32, kK, kN, kK}, packed.data());
    x.resize(rows.size() * tw_dtype_bytes(dtype));
    // One row of K = everything: pack's conversion without its interleaving of rows.
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<char> one(tw_panel_bytes(dtype, 1));
      pack_panels(dtype, {&rows[i], TW_F32, 1, 1, 1}, one.data());
      std::memcpy(x.data() + i * tw_dtype_bytes(dtype), one.data(), tw_dtype_bytes(dtype));
    }
  }

  tw_matmul_args args(float* y) const {
    tw_matmul_args a = {};
    a.rows = kRows;
    a.k = kK;
    a.n = kN;
    a.panel_end = static_cast<int32_t>(panels_of(kN));
    a.y_dtype = TW_F32;
    a.x = x.data();
    a.x_stride = kK;
    a.w = packed.data();
    a.y = y;
    a.y_stride = kN;
    return a;
  }
};

void check_exact(const std::vector<float>& y) {
  for (int row = 0; row < kRows; ++row) {
    for (int n = 0; n < kN; ++n) TW_CHECK_EQ(y[static_cast<size_t>(row * kN + n)], exact(row, n));
  }
}

template <typename Body>
void for_each_kernel(Body body) {
  for (int dtype : {TW_F32, TW_BF16}) {
    for (const auto& entry : matmul_kernels(dtype)) {
      if (refusal(entry.isa, entry.extra, kEveryIsa).empty()) body(dtype, entry.fn);
    }
  }
}

}  // namespace

TW_TEST(integers_come_out_exact) {
  for_each_kernel([](int dtype, tw_matmul_fn kernel) {
    std::vector<float> y(kRows * kN, -1);
    const Operands operands(dtype);
    const tw_matmul_args a = operands.args(y.data());
    kernel(&a);
    check_exact(y);
  });
}

TW_TEST(ranges_of_rows_and_panels_join) {
  for_each_kernel([](int dtype, tw_matmul_fn kernel) {
    std::vector<float> y(kRows * kN, -1);
    const Operands operands(dtype);
    for (int row = 0; row < kRows; row += 3) {
      for (int panel = 0; panel < panels_of(kN); ++panel) {
        tw_matmul_args a = operands.args(y.data() + row * kN);
        a.rows = row + 3 > kRows ? kRows - row : 3;
        a.x = operands.x.data() + static_cast<size_t>(row * kK) * tw_dtype_bytes(dtype);
        a.panel_begin = panel;
        a.panel_end = panel + 1;
        kernel(&a);
      }
    }
    check_exact(y);
  });
}

TW_TEST(packing_inverts) {
  const Operands operands(TW_F32);
  std::vector<float> back(kN * kK);
  unpack_panels(TW_F32, operands.packed.data(), kN, kK, back.data());
  TW_CHECK(back == operands.w);
}

TW_TEST(tiles_cover_a_product_once_and_shares_of_rows_are_fair) {
  for (const int rows : {1, 7, 16, 97, 191, 193, 384, 512, 2000}) {
    for (const int threads : {1, 2, 3, 16}) {
      const MatmulTiling t = tile_matmul(rows, 152, 896, 7680, threads);
      TW_CHECK(t.row_tile * (t.row_tiles - 1) < rows && rows <= t.row_tile * t.row_tiles);
      TW_CHECK(t.panel_block * (t.panel_blocks - 1) < 152 && 152 <= t.panel_block * t.panel_blocks);
      TW_CHECK_EQ(t.row(t.tasks() - 1), t.row_tile * (t.row_tiles - 1));
      TW_CHECK_EQ(t.panel(t.tasks() - 1), t.panel_block * (t.panel_blocks - 1));
    }
  }
  TW_CHECK_EQ(tile_matmul(512, 152, 896, 7680, 2).row_tiles, 4);
  TW_CHECK_EQ(tile_matmul(512, 152, 896, 7680, 3).row_tiles, 3);
  TW_CHECK_EQ(tile_matmul(192, 152, 896, 7680, 2).row_tiles, 1);
  TW_CHECK_EQ(tile_matmul(193, 152, 896, 7680, 4).row_tiles, 2);  // tiles of 48 rows would cost more
}

TW_TEST(every_table_ends_with_the_reference) {
  TW_CHECK(matmul_kernels(TW_F32).back().isa == Isa::scalar);
  TW_CHECK(matmul_kernels(TW_BF16).back().isa == Isa::scalar);
  TW_CHECK(choose("matmul", matmul_kernels(TW_F32), Isa::scalar) == matmul_kernels(TW_F32).back().fn);
}

TW_TEST_MAIN()
