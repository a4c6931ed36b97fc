// Every kernel this processor has, against the scalar ones, on random numbers and buffers of exactly the
// needed size. Prints the selected instruction set: run under an emulated processor, too.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/common/dispatch.h"
#include "plugins/matmul/pack.h"
#include "tests/cpp/check.h"

using namespace tensorwright;

namespace {

std::vector<float> normal(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

std::vector<char> stored(int dtype, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * tw_dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = tw_f32_to_bf16(values[i]);
    if (dtype == TW_BF16) std::memcpy(&bytes[i * 2], &half, 2);
    if (dtype == TW_F32) std::memcpy(&bytes[i * 4], &values[i], 4);
  }
  return bytes;
}

std::vector<char> packed(int dtype, int rows, int k, unsigned seed) {
  const std::vector<float> w = normal(static_cast<size_t>(rows) * static_cast<size_t>(k), seed);
  std::vector<char> panels(static_cast<size_t>(panels_of(rows)) *
                           tw_panel_bytes(dtype, static_cast<size_t>(k)));
  pack_panels(dtype, {w.data(), TW_F32, k, rows, k}, panels.data());
  return panels;
}

// What every runnable entry of `table` writes, the reference last. bf16 dot instructions round otherwise.
template <typename Fn, typename Args>
void expect_same_bits(std::span<const KernelEntry<Fn>> table, Args args, void* Args::* at, size_t bytes) {
  std::vector<char> expected(bytes), got(bytes);
  args.*at = expected.data();
  table.back().fn(&args);
  args.*at = got.data();
  for (const auto& entry : table) {
    if (entry.extra == Extra::bf16 || !refusal(entry.isa, Extra::none, Isa::avx512).empty()) continue;
    std::fill(got.begin(), got.end(), '\xff');
    entry.fn(&args);
    if (got != expected) tw_test::fail(entry.name, 0, "does not give the bits of the reference");
  }
}

void check_matmul(int dtype, int rows, int n, int k, int epilogue) {
  const int wide = epilogue != TW_EPILOGUE_NONE ? static_cast<int>(panels_of(n)) * 2 * TW_LANES : n;
  const std::vector<char> x = stored(dtype, normal(static_cast<size_t>(rows * k), 1)),
                          w = packed(dtype, wide, k, 2);
  const std::vector<float> bias = normal(static_cast<size_t>(wide), 3);
  tw_matmul_args a = {};
  a.rows = rows, a.k = k, a.n = n, a.panel_end = static_cast<int32_t>(panels_of(wide));
  a.epilogue = epilogue, a.x = x.data(), a.x_stride = k, a.w = w.data(), a.bias = bias.data(), a.y_stride = n;
  for (int y_dtype : {TW_F32, TW_BF16}) {
    a.y_dtype = y_dtype;
    expect_same_bits(matmul_kernels(dtype), a, &tw_matmul_args::y,
                     static_cast<size_t>(rows * n) * tw_dtype_bytes(y_dtype));
  }
}

}  // namespace

TW_TEST(the_selected_level_is_printed) {
  std::printf("selected %s\n", isa_name(selected_isa()));
  for (const DispatchChoice& choice : explain_dispatch()) TW_CHECK(!choice.taken.empty());
}

TW_TEST(matmul) {
  for (int dtype : {TW_F32, TW_BF16}) {
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 13})
      check_matmul(dtype, rows, 5 * TW_LANES + 3, 19, TW_EPILOGUE_NONE);
    for (int n = 1; n <= 2 * TW_LANES + 1; ++n) {
      for (int gated = 1; gated <= TW_EPILOGUE_LAST; ++gated) check_matmul(dtype, 2, n, 8, gated);
    }
    for (int k : {1, 2, 3, 511, 512, 513, 1027}) check_matmul(dtype, 7, 37, k, TW_EPILOGUE_NONE);
    check_matmul(dtype, 100, 37, 515, TW_EPILOGUE_SWIGLU);
  }
}

TW_TEST(swiglu) {
  for (int width = 1; width <= 2 * TW_LANES + 1; ++width) {
    const std::vector<float> x = normal(static_cast<size_t>(6 * width), 4);
    tw_swiglu_args a = {};
    a.rows = 3, a.width = width, a.x = x.data(), a.x_stride = 2 * width, a.y_stride = width;
    for (int y_dtype : {TW_F32, TW_BF16}) {
      a.y_dtype = y_dtype;
      for (a.activation = 0; a.activation < TW_ACTIVATIONS; ++a.activation) {
        expect_same_bits(swiglu_kernels(), a, &tw_swiglu_args::y,
                         static_cast<size_t>(3 * width) * tw_dtype_bytes(y_dtype));
      }
    }
  }
}

TW_TEST(elementwise) {
  const uint8_t programs[][TW_EW_BYTES] = {
      {TW_EW_X0, TW_EW_TANH, TW_EW_X1, TW_EW_GELU_ERF, TW_EW_ADD, TW_EW_X2, TW_EW_SIGMOID, TW_EW_MUL, TW_EW_W,
       TW_EW_EXP, TW_EW_SUB, TW_EW_X3, TW_EW_C0, TW_EW_DIV, TW_EW_MAX},
      {TW_EW_X0, TW_EW_ABS, TW_EW_C1, TW_EW_ADD, TW_EW_RSQRT, TW_EW_X1, TW_EW_GELU_TANH, TW_EW_MIN},
      {TW_EW_X0, TW_EW_ERF, TW_EW_NEG, TW_EW_X1, TW_EW_SILU, TW_EW_SQUARE, TW_EW_SQRT, TW_EW_RELU, TW_EW_MUL},
  };
  const float constants[TW_EW_CONSTANTS] = {3.0f, 0.5f};
  for (int width = 1; width <= 4 * TW_LANES + 1; ++width) {
    const size_t size = static_cast<size_t>(3 * width);
    const std::vector<float> x[] = {normal(size, 6), normal(size, 7), normal(size, 8), normal(size, 9)};
    const std::vector<float> w = normal(static_cast<size_t>(width), 10);
    tw_elementwise_args a = {};
    a.rows = 3, a.width = width, a.constants = constants, a.w = w.data(), a.y_stride = width;
    for (int i = 0; i < TW_EW_INPUTS; ++i) a.x[i] = x[i].data(), a.x_stride[i] = width;
    for (const uint8_t* program : programs) {
      a.code = program;
      for (int y_dtype : {TW_F32, TW_BF16}) {
        a.y_dtype = y_dtype;
        expect_same_bits(elementwise_kernels(), a, &tw_elementwise_args::y, size * tw_dtype_bytes(y_dtype));
      }
    }
  }
}

TW_TEST(embedding) {
  const int32_t ids[] = {0, 36, 15, 16};
  for (int dtype : {TW_F32, TW_BF16}) {
    for (int width = 1; width <= 2 * TW_LANES + 1; ++width) {
      const std::vector<char> table = packed(dtype, 37, width, 5);
      std::vector<std::vector<float>> results;
      for (const auto& entry : embedding_kernels(dtype)) {
        if (!refusal(entry.isa, Extra::none, Isa::avx512).empty()) continue;
        results.emplace_back(static_cast<size_t>(4 * width), -1.0f);
        const tw_embedding_args a = {4, width, ids, table.data(), 1.7f, results.back().data(), width, 0};
        entry.fn(&a);
      }
      for (const auto& result : results) TW_CHECK(result == results.back());
    }
  }
}

TW_TEST_MAIN()
