// Every kernel this processor has, against the scalar ones, on random numbers and buffers of exactly the
// needed size. Prints the selected instruction set: run under an emulated processor, too.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plugins/common/bf16.h"
#include "plugins/common/dispatch.h"
#include "plugins/elementwise/kernels.h"
#include "plugins/embedding/kernels.h"
#include "plugins/matmul/kernels.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/quantized_matmul/quantize.h"
#include "plugins/swiglu/kernels.h"
#include "plugins/weight_only_matmul/kernels.h"
#include "runtime/bindings/testing/panels.h"
#include "tests/cpp/check.h"
#include "tests/cpp/normal_numbers.h"

using namespace tensorwright;
using tw_test::normal;

namespace {

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

// The entries of a table but for the reference, which is the last: it need not be compared with itself.
template <typename Fn>
std::span<const KernelEntry<Fn>> but_the_reference(std::span<const KernelEntry<Fn>> table) {
  return table.first(table.size() - 1);
}

// What every runnable entry of `table` writes, against the reference. bf16 dot instructions and tiles round
// otherwise.
template <typename Fn, typename Args>
void expect_same_bits(std::span<const KernelEntry<Fn>> table, Args args, void* Args::* at, size_t bytes) {
  std::vector<char> expected(bytes), got(bytes);
  args.*at = expected.data();
  table.back().fn(&args);
  args.*at = got.data();
  for (const auto& entry : but_the_reference(table)) {
    if (rounds_otherwise(entry.extra)) continue;
    if (!refusal(entry.isa, entry.extra, kEveryIsa).empty()) continue;
    std::fill(got.begin(), got.end(), '\xff');
    entry.fn(&args);
    if (got != expected) tw_test::fail(entry.name, 0, "does not give the bits of the reference");
  }
}

// x_dtype: that of the weights too, but for float32 by bfloat16.
void check_matmul(std::span<const KernelEntry<tw_matmul_fn>> table, int x_dtype, int dtype, int rows, int n,
                  int k, int epilogue) {
  const int wide = epilogue != TW_EPILOGUE_NONE ? static_cast<int>(panels_of(n)) * 2 * TW_LANES : n;
  const std::vector<char> x = stored(x_dtype, normal(static_cast<size_t>(rows * k), 1)),
                          w = packed(dtype, wide, k, 2);
  const std::vector<float> bias = normal(static_cast<size_t>(wide), 3);
  tw_matmul_args a = {};
  a.rows = rows, a.k = k, a.n = n, a.panel_end = static_cast<int32_t>(panels_of(wide));
  a.epilogue = epilogue, a.x = x.data(), a.x_stride = k, a.w = w.data(), a.bias = bias.data(), a.y_stride = n;
  for (int y_dtype : {TW_F32, TW_BF16}) {
    a.y_dtype = y_dtype;
    expect_same_bits(table, a, &tw_matmul_args::y, static_cast<size_t>(rows * n) * tw_dtype_bytes(y_dtype));
  }
}

void check_matmul(int dtype, int rows, int n, int k, int epilogue) {
  check_matmul(matmul_kernels(dtype), dtype, dtype, rows, n, k, epilogue);
}

// A format of quantized weights, and n rows of k in it.
struct Quantized {
  int dtype;
  int64_t group;

  std::vector<char> panels(tw_quantize_weights_fn kernel, const std::vector<float>& w, int n, int k) const {
    const int64_t bytes = tw_quantized_panel_bytes(dtype, k, group);
    std::vector<char> out(static_cast<size_t>(panels_of(n) * bytes));
    quantize_panels(kernel, dtype, group, {w.data(), TW_F32, k, n, k}, out.data(), bytes);
    return out;
  }
};

constexpr Quantized kFormats[] = {
    {TW_I4, 32},        {TW_I4, 64},         {TW_I4, 128},     {TW_I8, 32},        {TW_I8, 64},
    {TW_I8, 128},       {TW_I8, 0},          {TW_MXFP4, 32},   {TW_U8, 64},        {TW_U4, 32},
    {TW_U4, 128},       {TW_I8_F16, 32},     {TW_I4_F16, 128}, {TW_U8_F16, 128},   {TW_U4_F16, 64},
    {TW_I3, 32},        {TW_U3_F16, 64},     {TW_I2, 64},      {TW_U2, 32},        {TW_U3, 128},
    {TW_I2_F16, 128},   {TW_I3_F16, 32},     {TW_U2_F16, 32},  {TW_I8_SPARSE, 32}, {TW_I8_SPARSE, 64},
    {TW_I4_SPARSE, 64}, {TW_I4_SPARSE, 128}, {TW_W4A8, 32},    {TW_W4A8, 128}};

// Weights [n, k] as the reference packs them. Many cases share them, for packing takes longer than products.
const std::vector<char>& packed(const Quantized& format, int n, int k) {
  static std::map<std::tuple<int, int64_t, int, int>, std::vector<char>> made;
  std::vector<char>& panels = made[{format.dtype, format.group, n, k}];
  if (panels.empty())
    panels = format.panels(quantize_weights_kernels().back().fn,
                           normal(static_cast<size_t>(n) * static_cast<size_t>(k), 12), n, k);
  return panels;
}

// Activations [rows, k] as the kernel `fn` quantizes them; buffers of exactly the needed size.
struct QuantizedRows {
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  int64_t groups, row;

  QuantizedRows(tw_quantize_rows_fn fn, const Quantized& format, int dtype, const std::vector<char>& x,
                int rows, int k)
      : groups(tw_activation_groups(format.dtype, k, format.group)), row(tw_quantized_row(k, format.group)) {
    q.resize(static_cast<size_t>(rows * row));
    scale.resize(static_cast<size_t>(rows * groups));
    sum.resize(scale.size());
    const tw_quantize_rows_args a = {
        rows,       k,    static_cast<int32_t>(row / groups), dtype, x.data(), k, q.data(), row, scale.data(),
        sum.data(), rows, tw_sum_factor(format.dtype)};
    fn(&a);
  }
  bool operator==(const QuantizedRows&) const = default;
};

template <typename Entry>
bool runs(const Entry& entry) {
  return refusal(entry.isa, entry.extra, kEveryIsa).empty();
}

void check_quantized(const Quantized& format, int rows, int n, int k, int epilogue) {
  const int wide = epilogue != TW_EPILOGUE_NONE ? static_cast<int>(panels_of(n)) * 2 * TW_LANES : n;
  const std::vector<char>& w = packed(format, wide, k);
  const std::vector<char> x = stored(TW_F32, normal(static_cast<size_t>(rows * k), 13));
  const QuantizedRows made(quantize_rows_kernels().back().fn, format, TW_F32, x, rows, k);
  const std::vector<float> bias = normal(static_cast<size_t>(wide), 14);
  tw_quantized_matmul_args a = {};
  a.matmul.rows = rows, a.matmul.k = k, a.matmul.n = n;
  a.matmul.panel_end = static_cast<int32_t>(panels_of(wide)), a.matmul.epilogue = epilogue;
  a.matmul.x = made.q.data(), a.matmul.x_stride = made.row, a.matmul.w = w.data();
  a.matmul.bias = bias.data(), a.matmul.y_stride = n;
  a.group = static_cast<int32_t>(format.group), a.x_scale = made.scale.data(), a.x_sum = made.sum.data();
  a.group_stride = rows;
  std::vector<std::vector<float>> results;
  for (const auto& entry : quantized_matmul_kernels(format.dtype)) {
    if (!runs(entry)) continue;
    results.emplace_back(static_cast<size_t>(rows * n), -1.0f);
    a.matmul.y = results.back().data();
    entry.fn(&a);
  }
  for (const auto& result : results) TW_CHECK(result == results.back());
}

// The kernel that a processor with these features takes, and why it does not take the best.
template <typename Fn>
std::pair<std::string, std::string> taken(std::span<const KernelEntry<Fn>> table,
                                          const CpuFeatures& features) {
  DispatchChoice choice;
  choose("", table, kEveryIsa, &choice, features);
  return {choice.taken, choice.refused.empty() ? "" : choice.refused[0]};
}

std::string taken(int dtype, const CpuFeatures& features, std::string* first_refusal) {
  const auto [name, refused] = taken(quantized_matmul_kernels(dtype), features);
  *first_refusal = refused;
  return name;
}

void check_weight_only(int dtype, int64_t group, int x_dtype, int rows, int n, int k) {
  const std::vector<char>& w = packed({dtype, group}, n, k);
  const std::vector<char> x = stored(x_dtype, normal(static_cast<size_t>(rows * k), 18));
  tw_weight_only_matmul_args a = {};
  a.matmul.rows = rows, a.matmul.k = k, a.matmul.n = n,
  a.matmul.panel_end = static_cast<int32_t>(panels_of(n));
  a.matmul.x = x.data(), a.matmul.x_stride = k, a.matmul.w = w.data(), a.matmul.y_stride = n;
  a.w_dtype = dtype, a.group = static_cast<int32_t>(group);
  std::vector<float> expected(static_cast<size_t>(rows * n)), got(expected.size());
  const auto table = weight_only_matmul_kernels(x_dtype);
  a.matmul.y = expected.data();
  table.back().fn(&a);
  a.matmul.y = got.data();
  for (const auto& entry : but_the_reference(table)) {
    if (!runs(entry) || rounds_otherwise(entry.extra)) continue;
    std::fill(got.begin(), got.end(), -1.0f);
    entry.fn(&a);
    if (got != expected) tw_test::fail(entry.name, dtype, "does not give the bits of the reference");
  }
}

}  // namespace

TW_TEST(the_selected_level_is_printed) {
  std::printf("selected %s\n", isa_name(selected_isa()));
  for (const DispatchChoice& choice : explain_dispatch()) {
    TW_CHECK(!choice.taken.empty());
    std::printf("%s: %s\n", choice.family.c_str(), choice.taken.c_str());
  }
}

TW_TEST(matmul) {
  for (int dtype : {TW_F32, TW_BF16}) {
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 13})
      check_matmul(dtype, rows, 5 * TW_LANES + 3, 19, TW_EPILOGUE_NONE);
    for (int n = 1; n <= 2 * TW_LANES + 1; ++n) {
      for (int gated = 1; gated <= TW_EPILOGUE_LAST; ++gated) check_matmul(dtype, 2, n, 8, gated);
    }
    for (int k : {1, 2, 3, 511, 512, 513, 1027})
      check_matmul(dtype, tw_test::emulated() ? 2 : 7, 37, k, TW_EPILOGUE_NONE);
    check_matmul(dtype, tw_test::emulated() ? 13 : 100, 37, 515, TW_EPILOGUE_GATED);
  }
}

TW_TEST(matmul_of_floats_by_bfloat16) {
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 13})
    check_matmul(matmul_by_bf16_kernels(), TW_F32, TW_BF16, rows, 5 * TW_LANES + 3, 19, TW_EPILOGUE_NONE);
  for (int k : {1, 2, 511, 513})
    check_matmul(matmul_by_bf16_kernels(), TW_F32, TW_BF16, 2, 37, k, TW_EPILOGUE_NONE);
}

// Also of kernels that round in an order of their own. K is longer than a block of any kernel.
TW_TEST(a_row_of_a_matmul_has_the_same_bits_alone_and_in_a_crowd) {
  constexpr int kRows = 13, kN = 5 * TW_LANES + 3;
  for (int dtype : {TW_F32, TW_BF16}) {
    for (int k : {19, 1027}) {
      const std::vector<char> x = stored(dtype, normal(static_cast<size_t>(kRows * k), 19)),
                              w = packed(dtype, kN, k, 20);
      tw_matmul_args a = {};
      a.k = k, a.n = kN, a.panel_end = static_cast<int32_t>(panels_of(kN)), a.w = w.data();
      a.x_stride = k, a.y_stride = kN;
      for (const auto& entry : matmul_kernels(dtype)) {
        if (!refusal(entry.isa, entry.extra, kEveryIsa).empty()) continue;
        std::vector<float> crowd(kRows * kN), alone(crowd.size());
        a.rows = kRows, a.x = x.data(), a.y = crowd.data();
        entry.fn(&a);
        a.rows = 1;
        for (int row = 0; row < kRows; ++row) {
          a.x = x.data() + static_cast<size_t>(row * k) * tw_dtype_bytes(dtype),
          a.y = alone.data() + row * kN;
          entry.fn(&a);
        }
        if (alone != crowd) tw_test::fail(entry.name, k, "gives a row other bits alone than in a crowd");
      }
    }
  }
}

TW_TEST(weight_only_matmul) {
  for (const Quantized& format : kFormats) {
    if (!tw_multiplies_floats(format.dtype)) continue;
    for (int x_dtype : {TW_F32, TW_BF16}) {
      for (int rows : {1, 2, 3, 6, 7, 13})
        check_weight_only(format.dtype, format.group, x_dtype, rows, 67, 70);
      for (int k : {1, 4, 33, 130, 261}) check_weight_only(format.dtype, format.group, x_dtype, 2, 16, k);
    }
  }
  for (int64_t group : {0, 32, 128}) {
    for (int rows : {1, 4, 9}) check_weight_only(TW_FP8, group, TW_F32, rows, 33, 70);
  }
}

TW_TEST(quantized_matmul) {
  for (const Quantized& format : kFormats) {
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 13}) check_quantized(format, rows, 5 * TW_LANES + 3, 70, 0);
    for (int n : {1, 15, 16, 17, 33, 64}) {
      for (int gated = 1; gated <= TW_EPILOGUE_LAST; ++gated) check_quantized(format, 2, n, 33, gated);
    }
    for (int k : {1, 4, 5, 127, 128, 129, 4100}) {
      if (k == 4100 && tw_test::emulated() && format.group != 128) continue;
      check_quantized(format, tw_test::emulated() ? 2 : 9, 3 * TW_LANES, k, 0);
    }
  }
}

TW_TEST(quantize_rows) {
  for (const Quantized& format : kFormats) {
    for (int dtype : {TW_F32, TW_BF16}) {
      for (int k : {1, 7, 8, 9, 15, 16, 17, 31, 33, 65, 129}) {
        const std::vector<char> x = stored(dtype, normal(static_cast<size_t>(3 * k), 15));
        const QuantizedRows expected(quantize_rows_kernels().back().fn, format, dtype, x, 3, k);
        for (const auto& entry : but_the_reference(quantize_rows_kernels())) {
          if (runs(entry)) TW_CHECK(QuantizedRows(entry.fn, format, dtype, x, 3, k) == expected);
        }
      }
    }
  }
}

TW_TEST(quantize_weights) {
  for (const Quantized& format : kFormats) {
    for (int n : {1, 8, 9, 17}) {
      for (int k : {1, 4, 5, 8, 9, 33, 130}) {
        const std::vector<float> w = normal(static_cast<size_t>(n * k), 16);
        const std::vector<char> expected = format.panels(quantize_weights_kernels().back().fn, w, n, k);
        for (const auto& entry : but_the_reference(quantize_weights_kernels())) {
          if (runs(entry)) TW_CHECK(format.panels(entry.fn, w, n, k) == expected);
        }
      }
    }
  }
}

#if defined(__x86_64__)

TW_TEST(without_vnni_the_avx2_kernel_is_taken_and_the_refusal_says_why) {
  CpuFeatures features;
  features.avx2 = features.fma = features.avx512 = true;
  constexpr std::pair<int, const char*> kKinds[] = {
      {TW_U8, "u8"}, {TW_I4, "i4"}, {TW_U8_F16, "u8_f16"}, {TW_U4_F16, "u4_f16"}, {TW_I3, "i3"}};
  for (const auto& [dtype, kind] : kKinds) {
    const std::string name = std::string("quantized_matmul_") + kind + "_";
    std::string refused;
    TW_CHECK_EQ(taken(dtype, features, &refused), name + "avx2");
    TW_CHECK_EQ(refused, name + "amx: needs AMX-INT8, which this processor lacks");
    features.avx_vnni = true;
    TW_CHECK_EQ(taken(dtype, features, &refused), name + "avxvnni");
    features.avx512_vnni = true;
    TW_CHECK_EQ(taken(dtype, features, &refused), name + "avx512vnni");
    features.avx512 = features.avx512_vnni = features.avx_vnni = false;
    TW_CHECK_EQ(taken(dtype, features, &refused), name + "avx2");
    TW_CHECK_EQ(refused, name + "amx: needs AVX-512 (F, BW, VL, DQ), which this processor lacks");
    TW_CHECK_EQ(taken(dtype, CpuFeatures{}, &refused), name + "scalar");
    features.avx512 = true;
  }
}

TW_TEST(tiles_are_taken_where_the_processor_has_them_and_vnni) {
  CpuFeatures features;
  features.avx2 = features.fma = features.avx512 = features.avx512_vnni = true;
  std::string refused;
  TW_CHECK_EQ(taken(TW_I8, features, &refused), "quantized_matmul_i8_avx512vnni");
  TW_CHECK_EQ(refused, "quantized_matmul_i8_amx: needs AMX-INT8, which this processor lacks");
  features.amx_int8 = true;
  TW_CHECK_EQ(taken(TW_I8, features, &refused), "quantized_matmul_i8_amx");
  TW_CHECK_EQ(taken(TW_W4A8, features, &refused), "quantized_matmul_w4a8_amx");
  TW_CHECK_EQ(taken(TW_I4, features, &refused), "quantized_matmul_i4_amx");
  TW_CHECK_EQ(taken(TW_MXFP4, features, &refused), "quantized_matmul_mxfp4_avx512vnni");
  TW_CHECK_EQ(taken(TW_I4_SPARSE, features, &refused), "quantized_matmul_i4_sparse_avx512vnni");
  TW_CHECK(!features_without(features, "avx512_vnni").amx_int8);

  const auto of_floats = [&] { return taken(matmul_kernels(TW_BF16), features).first; };
  features.avx512_bf16 = true;
  TW_CHECK_EQ(of_floats(), "matmul_bf16_avx512bf16");
  features.amx_bf16 = true;
  TW_CHECK_EQ(of_floats(), "matmul_bf16_amx");
  TW_CHECK(!features_without(features, "avx512").amx_bf16);
}

#else

TW_TEST(each_instruction_of_neon_is_used_where_the_processor_has_it) {
  CpuFeatures features;
  std::string refused;
  TW_CHECK_EQ(taken(TW_I4, features, &refused), "quantized_matmul_i4_scalar");
  TW_CHECK_EQ(refused, "quantized_matmul_i4_neoni8mm: needs NEON, which this processor lacks");
  features.neon = true;
  TW_CHECK_EQ(taken(TW_I4, features, &refused), "quantized_matmul_i4_neon");
  TW_CHECK_EQ(taken(matmul_kernels(TW_BF16), features).first, "matmul_bf16_neon");
  features.neon_dotprod = true;
  TW_CHECK_EQ(taken(TW_I4, features, &refused), "quantized_matmul_i4_neondot");
  TW_CHECK_EQ(refused,
              "quantized_matmul_i4_neoni8mm: needs NEON's products of int8 matrices (FEAT_I8MM), which "
              "this processor lacks");
  features.neon_i8mm = features.neon_bf16 = true;
  TW_CHECK_EQ(taken(TW_I4, features, &refused), "quantized_matmul_i4_neoni8mm");
  TW_CHECK_EQ(taken(TW_W4A8, features, &refused), "quantized_matmul_w4a8_neoni8mm");
  TW_CHECK_EQ(taken(TW_I8_SPARSE, features, &refused), "quantized_matmul_i8_sparse_neondot");
  TW_CHECK_EQ(taken(matmul_kernels(TW_BF16), features).first, "matmul_bf16_neonbf16");
  TW_CHECK(!features_without(features, "neon_dotprod").neon_i8mm);
  TW_CHECK(!features_without(features, "neon").neon_bf16);
}

#endif

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
      {TW_EW_X0, TW_EW_ERF, TW_EW_NEG, TW_EW_X1, TW_EW_SILU, TW_EW_SQUARE, TW_EW_SQRT, TW_EW_SOFTPLUS,
       TW_EW_RELU, TW_EW_MUL},
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
        if (!refusal(entry.isa, entry.extra, kEveryIsa).empty()) continue;
        results.emplace_back(static_cast<size_t>(4 * width), -1.0f);
        const tw_embedding_args a = {4, width, ids, table.data(), 1.7f, results.back().data(), width, 0};
        entry.fn(&a);
      }
      for (const auto& result : results) TW_CHECK(result == results.back());
    }
  }
}

TW_TEST_MAIN()
