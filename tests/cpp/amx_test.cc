// The AMX kernels, compiled with a model of the tiles: the same bits as the scalar kernel. (Where the
// processor has AMX, isa_test.cc and tests/plugins run the kernels themselves.)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/common/dispatch.h"
#include "plugins/matmul/kernels.h"
#include "plugins/matmul/pack.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/quantized_matmul/quantize.h"
#include "runtime/bindings/testing/panels.h"
#include "tests/cpp/check.h"
#include "tests/cpp/normal_numbers.h"

// tests/cpp/amx_model.cc, which is compiled for AVX-512: this file runs everywhere.
extern "C" tw_quantized_matmul_fn modelled_quantized(int dtype);
extern "C" long modelled_products();
extern "C" bool modelled_tiles();
// tests/cpp/amx_bf16_model.cc
extern "C" void modelled_bf16(const tw_matmul_args*);
extern "C" long modelled_bf16_products();
extern "C" bool modelled_bf16_tiles();

namespace {

using namespace tensorwright;

// A product of normal numbers, with buffers of exactly the needed size.
struct Case {
  int dtype;
  int64_t group;
  int rows, n, k, epilogue = TW_EPILOGUE_NONE;

  // Returns the results of the kernel and of the scalar one.
  std::vector<float> result(tw_quantized_matmul_fn kernel) const {
    const int panels = (n + TW_LANES - 1) / TW_LANES * tw_epilogue_panels(epilogue), wide = panels * TW_LANES;
    const int64_t bytes = tw_quantized_panel_bytes(dtype, k, group), row = tw_quantized_row(k, group);
    const std::vector<float> numbers = tw_test::normal((size_t)wide * (size_t)k, 1);
    std::vector<char> w((size_t)(panels * bytes));
    quantize_panels(quantize_weights_kernels().back().fn, dtype, group, {numbers.data(), TW_F32, k, wide, k},
                    w.data(), bytes);
    const std::vector<float> x = tw_test::normal((size_t)rows * (size_t)k, 2),
                             bias = tw_test::normal((size_t)wide, 3);
    std::vector<int8_t> q((size_t)(rows * row));
    const int64_t groups = tw_activation_groups(dtype, k, group);
    std::vector<float> scale((size_t)(rows * groups)), y((size_t)rows * (size_t)n, -1.0f);
    std::vector<int32_t> sum(scale.size());
    const tw_quantize_rows_args quantize = {
        rows,       k,    (int32_t)(row / groups), TW_F32, x.data(), k, q.data(), row, scale.data(),
        sum.data(), rows, tw_sum_factor(dtype)};
    quantize_rows_kernels().back().fn(&quantize);
    tw_quantized_matmul_args a = {};
    a.matmul.rows = rows, a.matmul.k = k, a.matmul.n = n, a.matmul.panel_end = panels,
    a.matmul.epilogue = epilogue;
    a.matmul.x = q.data(), a.matmul.x_stride = row, a.matmul.w = w.data(), a.matmul.bias = bias.data();
    a.matmul.y = y.data(), a.matmul.y_stride = n, a.matmul.y_dtype = TW_F32;
    a.group = (int32_t)group, a.x_scale = scale.data(), a.x_sum = sum.data(), a.group_stride = rows;
    kernel(&a);
    return y;
  }
};

void expect_bits(const Case& c, bool tiles) {
  const long before = modelled_products();
  const std::vector<float> got = c.result(modelled_quantized(c.dtype)),
                           want = c.result(quantized_matmul_kernels(c.dtype).back().fn);
  char name[80];
  std::snprintf(name, sizeof name, "dtype %d group %d: %d rows, n %d, k %d", c.dtype, (int)c.group, c.rows,
                c.n, c.k);
  if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) != 0)
    tw_test::fail(name, 0, "does not give the bits of the reference");
  if ((modelled_products() > before) != tiles) tw_test::fail(name, 0, tiles ? "used no tile" : "used tiles");
  if (modelled_tiles()) tw_test::fail(name, 0, "left tiles behind");
}

bool runs_here() {
  if (cpu_features().avx512_vnni) return true;
  std::printf("skipped: the processor has no AVX512-VNNI, which the kernel uses beside tiles\n");
  return false;
}

}  // namespace

TW_TEST(whole_rows_in_tiles_have_the_bits_of_the_definition) {
  if (!runs_here()) return;
  for (int rows : {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 130})
    for (int k : {4, 63, 64, 67, 128, 300})
      for (int n : {16, 33, 112}) expect_bits({TW_I8, 0, rows, n, k}, rows >= 16);
  for (int epilogue = 1; epilogue <= TW_EPILOGUE_LAST; ++epilogue)
    expect_bits({TW_I8, 0, 40, 50, 96, epilogue}, true);
}

TW_TEST(weights_with_steps_in_tiles_have_the_bits_of_the_definition) {
  if (!runs_here()) return;
  for (int group : {32, 64, 128})
    for (int rows : {1, 16, 17, 32, 47, 64, 200})
      for (int k : {32, 100, 256}) expect_bits({TW_W4A8, group, rows, 50, k}, rows > 16);
  expect_bits({TW_W4A8, 32, 200, 20, 5200}, true);  // three blocks of K
}

TW_TEST(groups_with_scales_in_tiles_have_the_bits_of_the_definition) {
  if (!runs_here()) return;
  int kinds = 0;
#define TW_CHECK_KIND(dtype, kind, name)                                                                  \
  if (!tw_has_steps(dtype)) {                                                                             \
    ++kinds;                                                                                              \
    for (int group : {32, 64, 128})                                                                       \
      for (int rows : {31, 32, 50}) expect_bits({dtype, group, rows, 50, 300}, group > 32 && rows >= 32); \
  }
  TW_FOR_EACH_IN_TILES(TW_CHECK_KIND)
#undef TW_CHECK_KIND
  TW_CHECK_EQ(kinds, 16);
  for (int dtype : {int{TW_I4}, int{TW_U8}})
    for (int rows : {33, 192, 193, 207, 400}) expect_bits({dtype, 64, rows, 33, 130}, true);
  expect_bits({TW_U4, 64, 40, 70, 5000}, true);  // three blocks of K
  for (int n : {1, 16, 17, 64, 130}) expect_bits({TW_I4, 128, 40, n, 129}, true);
  for (int epilogue = 1; epilogue <= TW_EPILOGUE_LAST; ++epilogue)
    expect_bits({TW_I4, 64, 40, 50, 96, epilogue}, true);
}

namespace {

// A product of bfloat16 numbers, in buffers of exactly the needed size.
struct Bf16Case {
  int rows, n, k;
  std::vector<uint16_t> x, w;  // [rows, k], [panels * 16, k]
  std::vector<char> packed;

  Bf16Case(int rows, int n, int k) : rows(rows), n(n), k(k) {
    const size_t wide = (size_t)panels_of(n) * TW_LANES;
    const std::vector<float> numbers = tw_test::normal(wide * (size_t)k, 1);
    for (float number : tw_test::normal((size_t)rows * (size_t)k, 2)) x.push_back(tw_f32_to_bf16(number));
    for (float number : numbers) w.push_back(tw_f32_to_bf16(number));
    packed.resize((size_t)panels_of(n) * tw_panel_bytes(TW_BF16, (size_t)k));
    pack_panels(TW_BF16, {numbers.data(), TW_F32, k, (int64_t)wide, k}, packed.data());
  }

  // Returns the products of rows [first, end), and no others.
  std::vector<float> result(tw_matmul_fn kernel, int first, int end) const {
    std::vector<float> y((size_t)(end - first) * (size_t)n, -1.0f);
    const std::vector<uint16_t> own(x.begin() + (long)first * k, x.begin() + (long)end * k);
    tw_matmul_args a = {};
    a.rows = end - first, a.k = k, a.n = n, a.panel_end = (int32_t)panels_of(n), a.y_dtype = TW_F32;
    a.x = own.data(), a.x_stride = k, a.w = packed.data(), a.y = y.data(), a.y_stride = n;
    kernel(&a);
    return y;
  }

  // The sum as tiles round it, in plain C: of each 32 columns the even and the odd products apart.
  float expected(int row, int column) const {
    float sum = 0;
    for (int begin = 0; begin < k; begin += 32) {
      float part[2] = {0, 0};
      for (int i = begin; i < std::min(begin + 32, k); ++i)
        part[i % 2] = std::fma(tw_bf16_to_f32(x[(size_t)(row * k + i)]),
                               tw_bf16_to_f32(w[(size_t)(column * k + i)]), part[i % 2]);
      sum += part[0] + part[1];
    }
    return sum;
  }
};

}  // namespace

TW_TEST(bf16_rows_in_tiles_have_the_bits_of_their_order) {
  if (!runs_here()) return;
  for (int rows : {1, 2, 15, 16, 17, 31, 32, 33, 47, 50, 192, 193, 207, 400})
    for (int k : {1, 2, 31, 32, 33, 67, 512, 600}) {
      if (rows > 100 && k > 100 && k != 600) continue;
      const Bf16Case c(rows, 83, k);
      const long before = modelled_bf16_products();
      const std::vector<float> got = c.result(modelled_bf16, 0, rows);
      TW_CHECK(modelled_bf16_products() > before);
      TW_CHECK(!modelled_bf16_tiles());
      for (int row = 0; row < rows; row += rows > 100 ? 7 : 1)
        for (int column = 0; column < c.n; ++column)
          TW_CHECK_EQ(got[(size_t)(row * c.n + column)], c.expected(row, column));
    }
}

TW_TEST(bf16_panels_of_any_number_and_no_rows) {
  if (!runs_here()) return;
  for (int rows : {3, 40})
    for (int n : {1, 16, 17, 33, 49, 64, 65, 130}) {
      const Bf16Case c(rows, n, 70);
      const std::vector<float> got = c.result(modelled_bf16, 0, rows);
      for (int column = 0; column < n; ++column) TW_CHECK_EQ(got[(size_t)column], c.expected(0, column));
    }
  TW_CHECK(Bf16Case(1, 16, 5).result(modelled_bf16, 0, 0).empty());
}

TW_TEST(the_processor_has_the_bits_of_the_model) {
  if (!cpu_features().amx_bf16) {
    std::printf("skipped: the processor has no AMX-BF16\n");
    return;
  }
  const tw_matmul_fn kernel = matmul_kernels(TW_BF16).front().fn;
  for (int rows : {1, 7, 16, 50, 200})
    for (int k : {5, 96, 700}) {
      const Bf16Case c(rows, 83, k);
      TW_CHECK(c.result(kernel, 0, rows) == c.result(modelled_bf16, 0, rows));
      for (int row : {0, rows / 2, rows - 1}) {
        const std::vector<float> alone = c.result(kernel, row, row + 1), all = c.result(kernel, 0, rows);
        TW_CHECK(std::memcmp(alone.data(), all.data() + row * c.n, alone.size() * sizeof(float)) == 0);
      }
    }
}

TW_TEST_MAIN()
