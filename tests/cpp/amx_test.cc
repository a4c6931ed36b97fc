// The AMX kernels, compiled with a model of the tiles: the same bits as the scalar kernel. (Where the
// processor has AMX, isa_test.cc and tests/plugins run the kernels themselves.)
#include <cstdio>
#include <cstring>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/quantized_matmul/quantize.h"
#include "tests/cpp/check.h"
#include "tests/cpp/normal_numbers.h"

// tests/cpp/amx_model.cc, which is compiled for AVX-512: this file runs everywhere.
extern "C" void modelled_i8(const tw_quantized_matmul_args*);
extern "C" void modelled_w4a8(const tw_quantized_matmul_args*);
extern "C" long modelled_products();
extern "C" bool modelled_tiles();

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

void expect_bits(const Case& c, tw_quantized_matmul_fn kernel, bool tiles) {
  const long before = modelled_products();
  const std::vector<float> got = c.result(kernel),
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
      for (int n : {16, 33, 112}) expect_bits({TW_I8, 0, rows, n, k}, modelled_i8, rows >= 16);
  for (int epilogue = 1; epilogue <= TW_EPILOGUE_LAST; ++epilogue)
    expect_bits({TW_I8, 0, 40, 50, 96, epilogue}, modelled_i8, true);
}

TW_TEST(weights_with_steps_in_tiles_have_the_bits_of_the_definition) {
  if (!runs_here()) return;
  for (int group : {32, 64, 128})
    for (int rows : {1, 16, 17, 32, 47, 64, 200})
      for (int k : {32, 100, 256}) expect_bits({TW_W4A8, group, rows, 50, k}, modelled_w4a8, rows > 16);
  expect_bits({TW_W4A8, 32, 200, 20, 5200}, modelled_w4a8, true);  // three blocks of K
}

TW_TEST(groups_with_scales_are_computed_without_tiles) {
  if (!runs_here()) return;
  expect_bits({TW_I8, 64, 40, 50, 200}, modelled_i8, false);
}

TW_TEST_MAIN()
