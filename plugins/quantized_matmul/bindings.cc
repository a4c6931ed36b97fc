// The quantized matmul kernels in Python, for tests and benchmarks. Weights of 8 bits have dtype 3, weights
// of 4 bits dtype 4.
#include "plugins/matmul/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/quantized_matmul/kernels.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/bindings/quantize_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

template <typename T>
using RowsOf = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
template <typename T>
using VectorOf = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyRows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;

void quantize_rows(int dtype, size_t index, int64_t group, const AnyRows& x, const RowsOf<int8_t>& q,
                   const RowsOf<float>& scale, const RowsOf<int32_t>& sum) {
  require_contiguous_rows(x, "x");
  require_contiguous_rows(q, "q");
  const auto rows = x.shape(0), k = x.shape(1);
  require(group == 0 || group == 32 || group == 64 || group == 128, "group must be 0, 32, 64 or 128");
  const auto groups = static_cast<size_t>(tw_activation_groups(dtype, static_cast<int64_t>(k), group));
  require(q.shape(0) == rows &&
              static_cast<int64_t>(q.shape(1)) == tw_quantized_row(static_cast<int64_t>(k), group),
          "q must have x's rows, with whole groups");
  require(scale.shape(0) == groups && scale.shape(1) == rows && sum.shape(0) == groups &&
              sum.shape(1) == rows && scale.stride(0) == sum.stride(0),
          "scale and sum must be [groups, rows]");
  const tw_quantize_rows_args a = {
      static_cast<int32_t>(rows),
      static_cast<int32_t>(k),
      static_cast<int32_t>(tw_activation_group(dtype, static_cast<int64_t>(k), group)),
      float_dtype(x, "x"),
      x.data(),
      x.stride(0),
      q.data(),
      q.stride(0),
      scale.data(),
      sum.data(),
      scale.stride(0),
      tw_sum_factor(dtype)};
  kernel_at(quantize_rows_kernels(), index)(&a);
}

void run_quantized_matmul(int dtype, size_t index, int64_t group, int64_t k, const RowsOf<int8_t>& x,
                          const RowsOf<float>& scale, const RowsOf<int32_t>& sum, const VectorOf<uint8_t>& w,
                          const AnyRows& y, const std::optional<VectorOf<float>>& bias,
                          const std::optional<RowsOf<float>>& residual, int epilogue, int panel_begin,
                          int panel_end) {
  require_quantized_format(dtype, group, k);
  require_contiguous_rows(x, "x");
  require_contiguous_rows(y, "y");
  require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "there is no such epilogue");
  const int pairs = tw_epilogue_panels(epilogue);
  const int64_t panels = panels_of(static_cast<int64_t>(y.shape(1))) * pairs;
  const auto groups = static_cast<size_t>(tw_activation_groups(dtype, k, group));
  require(static_cast<int64_t>(x.shape(1)) == tw_quantized_row(k, group) && x.shape(0) == y.shape(0),
          "x must be [rows of y, whole groups]");
  require(scale.shape(0) == groups && scale.shape(1) == x.shape(0) && sum.shape(0) == groups &&
              sum.shape(1) == x.shape(0) && scale.stride(0) == sum.stride(0),
          "scale and sum must be [groups, rows]");
  require(static_cast<int64_t>(w.size()) >= panels * tw_quantized_panel_bytes(dtype, k, group),
          "w is too short");
  if (panel_end < 0) panel_end = static_cast<int>(panels);
  require(0 <= panel_begin && panel_begin <= panel_end && panel_end <= panels && panel_begin % pairs == 0 &&
              panel_end % pairs == 0,
          "panel range out of bounds");
  require(!bias || static_cast<int64_t>(bias->size()) >= panels * TW_LANES, "bias must have whole panels");
  require(!residual || (residual->shape(0) == y.shape(0) && residual->shape(1) == y.shape(1)),
          "residual must have y's shape");
  tw_quantized_matmul_args a = {};
  a.matmul.rows = static_cast<int32_t>(x.shape(0));
  a.matmul.k = static_cast<int32_t>(k);
  a.matmul.n = static_cast<int32_t>(y.shape(1));
  a.matmul.panel_begin = panel_begin;
  a.matmul.panel_end = panel_end;
  a.matmul.epilogue = epilogue;
  a.matmul.y_dtype = float_dtype(y, "y");
  a.matmul.x = x.data();
  a.matmul.x_stride = x.stride(0);
  a.matmul.w = w.data();
  a.matmul.bias = bias ? bias->data() : nullptr;
  a.matmul.residual = residual ? residual->data() : nullptr;
  a.matmul.residual_stride = residual ? residual->stride(0) : 0;
  a.matmul.y = const_cast<void*>(static_cast<const void*>(y.data()));
  a.matmul.y_stride = y.stride(0);
  a.group = static_cast<int32_t>(group);
  a.x_scale = scale.data();
  a.x_sum = sum.data();
  a.group_stride = scale.stride(0);
  const tw_quantized_matmul_fn kernel = kernel_at(quantized_matmul_kernels(dtype), index);
  nb::gil_scoped_release release;
  kernel(&a);
}

QuantizationSums quantize_with(size_t index, int dtype, int64_t group, const SourceRows& source,
                               const Bytes& out, int64_t first, int64_t step) {
  return quantize(kernel_at(quantize_weights_kernels(), index), dtype, group, source, out, first, step);
}

// Times a quantized matmul as time_matmul() times a plain one, without the quantization of x. Every byte is
// 0x3c, in weights and in scales.
std::vector<double> time_quantized_matmul(int dtype, int group, size_t index, int rows, int n, int k,
                                          int epilogue, int threads, int repeats, int copies, bool by_rows) {
  const tw_quantized_matmul_fn kernel = kernel_at(quantized_matmul_kernels(dtype), index);
  const int pair = tw_epilogue_panels(epilogue);
  const int panels = static_cast<int>(panels_of(n)) * pair;
  const auto bytes = static_cast<size_t>(panels * tw_quantized_panel_bytes(dtype, k, group));
  const int64_t row = tw_quantized_row(k, group), groups = tw_activation_groups(dtype, k, group);
  const auto count = static_cast<size_t>(rows);
  const Buffer w = benchmark_buffer(bytes * static_cast<size_t>(copies));
  const Buffer x = benchmark_buffer(count * static_cast<size_t>(row));
  const Buffer scales = benchmark_buffer(count * static_cast<size_t>(groups) * sizeof(float));
  const Buffer y = benchmark_buffer(count * static_cast<size_t>(n) * sizeof(float));
  const std::vector<int32_t> sums(count * static_cast<size_t>(groups),
                                  0x3c * static_cast<int32_t>(row / groups));
  return timed(threads, repeats, [&](int thread, int round) {
    tw_quantized_matmul_args a = {};
    const int64_t first = first_row(rows, thread, threads, by_rows);
    take_share(&a.matmul, rows, panels, pair, thread, threads, by_rows);
    a.matmul.k = k;
    a.matmul.n = n;
    a.matmul.epilogue = epilogue;
    a.matmul.y_dtype = TW_F32;
    a.matmul.x = x.get() + first * row;
    a.matmul.x_stride = row;
    a.matmul.w = w.get() + bytes * static_cast<size_t>(round % copies);
    a.matmul.y = reinterpret_cast<float*>(y.get()) + first * n;
    a.matmul.y_stride = n;
    a.group = group;
    a.x_scale = reinterpret_cast<const float*>(scales.get()) + first;
    a.x_sum = sums.data() + first;
    a.group_stride = rows;
    kernel(&a);
  });
}

void bind_quantized_matmul(nb::module_& m) {
  m.def(
      "quantized_matmul_table", [](int dtype) { return kernel_list(quantized_matmul_kernels(dtype)); },
      "dtype"_a, "(name, instruction set, runnable here) of every kernel, best first");
  m.def("quantize_weights_table", [] { return kernel_list(quantize_weights_kernels()); });
  m.def("quantize_rows_table", [] { return kernel_list(quantize_rows_kernels()); });
  m.def("quantize_rows", &quantize_rows, "dtype"_a, "index"_a, "group"_a, "x"_a, "q"_a, "scale"_a, "sum"_a);
  m.def("run_quantized_matmul", &run_quantized_matmul, "dtype"_a, "index"_a, "group"_a, "k"_a, nb::kw_only(),
        "x"_a, "scale"_a, "sum"_a, "w"_a, "y"_a, "bias"_a = nb::none(), "residual"_a = nb::none(),
        "epilogue"_a = 0, "panel_begin"_a = 0, "panel_end"_a = -1);
  m.def("time_quantized_matmul", &time_quantized_matmul, "dtype"_a, "group"_a, "index"_a, nb::kw_only(),
        "rows"_a, "n"_a, "k"_a, "epilogue"_a = 0, "threads"_a = 1, "repeats"_a = 10, "copies"_a = 1,
        "by_rows"_a = false, nb::call_guard<nb::gil_scoped_release>(),
        "The same of a quantized matmul kernel; dtype: 3 int8, 4 int4; group: 0 for whole rows.");
  m.def("quantize_panels", &quantize_with, "index"_a, "dtype"_a, "group"_a, "source"_a, "out"_a,
        "first"_a = 0, "step"_a = 1,
        "As the runtime's quantize_panels, by kernel `index` of quantize_weights_table.");
}

const RegisteredBindings registered_quantized_matmul(&bind_quantized_matmul);

}  // namespace
}  // namespace tensorwright
