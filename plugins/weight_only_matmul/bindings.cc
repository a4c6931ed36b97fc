// The weight_only_matmul kernels in Python, for tests and benchmarks.
#include "plugins/matmul/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/weight_only_matmul/kernels.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/bindings/quantize_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void run_weight_only_matmul(int x_dtype, size_t index, int dtype, int64_t group, const Array& x,
                            const Bytes& w, const Array& y, const OptionalArray& bias,
                            const OptionalArray& residual, int epilogue, int panel_begin, int panel_end) {
  require_rows(x, x_dtype, "x");
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  require(y_dtype != TW_I32 && y.shape(0) == x.shape(0),
          "y must be float32 or uint16 with as many rows as x");
  const auto k = static_cast<int64_t>(x.shape(1));
  require_quantized_format(dtype, group, k);
  require(tw_multiplies_floats(dtype),
          "no products with weights of this dtype leave activations as they are");
  require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "there is no such epilogue");
  const int pairs = tw_epilogue_panels(epilogue);
  const int64_t panels = panels_of(static_cast<int64_t>(y.shape(1))) * pairs;
  require(static_cast<int64_t>(w.size()) >= panels * tw_quantized_panel_bytes(dtype, k, group),
          "w is too short");
  if (panel_end < 0) panel_end = static_cast<int>(panels);
  require(0 <= panel_begin && panel_begin <= panel_end && panel_end <= panels && panel_begin % pairs == 0 &&
              panel_end % pairs == 0,
          "panel range out of bounds");
  tw_weight_only_matmul_args a = {};
  a.matmul.rows = static_cast<int32_t>(x.shape(0));
  a.matmul.k = static_cast<int32_t>(k);
  a.matmul.n = static_cast<int32_t>(y.shape(1));
  a.matmul.panel_begin = panel_begin;
  a.matmul.panel_end = panel_end;
  a.matmul.epilogue = epilogue;
  a.matmul.y_dtype = y_dtype;
  a.matmul.x = x.data();
  a.matmul.x_stride = x.stride(0);
  a.matmul.w = w.data();
  a.matmul.bias = floats(bias, panels * TW_LANES, "bias");
  if (residual) {
    require_rows(*residual, TW_F32, "residual");
    require(residual->shape(0) == y.shape(0) && residual->shape(1) == y.shape(1),
            "residual must have y's shape");
    a.matmul.residual = static_cast<const float*>(residual->data());
    a.matmul.residual_stride = residual->stride(0);
  }
  a.matmul.y = const_cast<void*>(static_cast<const void*>(y.data()));
  a.matmul.y_stride = y.stride(0);
  a.w_dtype = dtype;
  a.group = static_cast<int32_t>(group);
  const tw_weight_only_matmul_fn kernel = kernel_at(weight_only_matmul_kernels(x_dtype), index);
  nb::gil_scoped_release release;
  kernel(&a);
}

// Times a product as time_matmul() times a plain one. Every byte is 0x3c, in weights and in scales.
std::vector<double> time_weight_only_matmul(int x_dtype, size_t index, int dtype, int group, int rows, int n,
                                            int k, int epilogue, int threads, int repeats, int copies,
                                            bool by_rows) {
  const tw_weight_only_matmul_fn kernel = kernel_at(weight_only_matmul_kernels(x_dtype), index);
  const int pair = tw_epilogue_panels(epilogue);
  const int panels = static_cast<int>(panels_of(n)) * pair;
  const auto bytes = static_cast<size_t>(panels * tw_quantized_panel_bytes(dtype, k, group));
  const size_t count = static_cast<size_t>(rows), element = tw_dtype_bytes(x_dtype);
  const Buffer w = benchmark_buffer(bytes * static_cast<size_t>(copies));
  const Buffer x = benchmark_buffer(count * static_cast<size_t>(k) * element);
  const int y_dtype = pair == 2 ? x_dtype : TW_F32;
  const Buffer y = benchmark_buffer(count * static_cast<size_t>(n) * sizeof(float));
  return timed(threads, repeats, [&](int thread, int round) {
    tw_weight_only_matmul_args a = {};
    const int64_t first = first_row(rows, thread, threads, by_rows);
    take_share(&a.matmul, rows, panels, pair, thread, threads, by_rows);
    a.matmul.k = k;
    a.matmul.n = n;
    a.matmul.epilogue = epilogue;
    a.matmul.y_dtype = y_dtype;
    a.matmul.x = x.get() + first * k * static_cast<int64_t>(element);
    a.matmul.x_stride = k;
    a.matmul.w = w.get() + bytes * static_cast<size_t>(round % copies);
    a.matmul.y = y.get() + first * n * static_cast<int64_t>(tw_dtype_bytes(y_dtype));
    a.matmul.y_stride = n;
    a.w_dtype = dtype;
    a.group = group;
    kernel(&a);
  });
}

void bind_weight_only_matmul(nb::module_& m) {
  m.def(
      "weight_only_matmul_table", [](int dtype) { return kernel_list(weight_only_matmul_kernels(dtype)); },
      "x_dtype"_a, "(name, instruction set, runnable here) of every kernel, best first");
  m.def("run_weight_only_matmul", &run_weight_only_matmul, "x_dtype"_a, "index"_a, "dtype"_a, "group"_a,
        nb::kw_only(), "x"_a, "w"_a, "y"_a, "bias"_a = nb::none(), "residual"_a = nb::none(),
        "epilogue"_a = 0, "panel_begin"_a = 0, "panel_end"_a = -1);
  m.def("time_weight_only_matmul", &time_weight_only_matmul, "x_dtype"_a, "index"_a, "dtype"_a, "group"_a,
        nb::kw_only(), "rows"_a, "n"_a, "k"_a, "epilogue"_a = 0, "threads"_a = 1, "repeats"_a = 10,
        "copies"_a = 1, "by_rows"_a = false, nb::call_guard<nb::gil_scoped_release>(),
        "Seconds of each repeat of one kernel, split over threads by panels or by rows.");
}

const RegisteredBindings registered_weight_only_matmul(&bind_weight_only_matmul);

}  // namespace
}  // namespace tensorwright
