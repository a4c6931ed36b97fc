// The quantized matmul kernels for tests and benchmarks, and the packer that builds use. Weights of 8 bits
// are dtype 3, of 4 bits dtype 4.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/common/dispatch.h"
#include "plugins/quantized_matmul/quantize.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

template <typename T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyRows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;
using SourceRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

void require(bool holds, const std::string& message) {
  if (!holds) throw Error("InvalidOptionError", message);
}

template <typename Array>
int float_dtype(const Array& array, const char* what) {
  if (array.dtype() == nb::dtype<float>()) return TW_F32;
  require(array.dtype() == nb::dtype<uint16_t>(),
          std::string(what) + " must be float32 or uint16 (bfloat16)");
  return TW_BF16;
}

template <typename Array>
void require_rows(const Array& array, const char* what) {
  require(array.stride(1) == 1 || array.shape(1) <= 1 || array.size() == 0,
          std::string(what) + " must have contiguous rows");
}

void require_format(int dtype, int64_t group) {
  require(dtype == TW_I8 || dtype == TW_I4, "dtype must be 3 (int8) or 4 (int4)");
  require((group == 0 && dtype == TW_I8) || group == 32 || group == 64 || group == 128,
          "group must be 32, 64, 128, or 0 (whole rows) with int8");
}

template <typename Fn>
std::vector<std::tuple<std::string, std::string, bool>> names(std::span<const KernelEntry<Fn>> table) {
  std::vector<std::tuple<std::string, std::string, bool>> rows;
  for (const auto& entry : table) {
    const bool runnable = refusal(entry.isa, entry.extra, Isa::avx512).empty();
    rows.emplace_back(entry.name, isa_name(entry.isa), runnable);
  }
  return rows;
}

template <typename Fn>
Fn entry_of(std::span<const KernelEntry<Fn>> table, size_t index) {
  require(index < table.size(), "kernel index out of range");
  const std::string reason = refusal(table[index].isa, table[index].extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(table[index].name) + ": " + reason);
  return table[index].fn;
}

// (error, weight, finite): see QuantizationError. step: 2 packs every other panel, for gate or up of a
// swiglu.
std::tuple<double, double, bool> pack(int dtype, int64_t group, const SourceRows& source,
                                      const Vector<uint8_t>& out, int64_t first, int64_t step,
                                      const std::optional<size_t>& index) {
  require_format(dtype, group);
  require_rows(source, "source");
  const auto rows = static_cast<int64_t>(source.shape(0)), k = static_cast<int64_t>(source.shape(1));
  const int64_t bytes = tw_quantized_panel_bytes(dtype, k, group);
  require(k > 0 && first >= 0 && step >= 1, "k and step must be positive, first not negative");
  const int64_t needed = rows == 0 ? 0 : ((panels_of(rows) - 1) * step + first + 1) * bytes;
  require(static_cast<int64_t>(out.size()) >= needed, "out must have " + std::to_string(needed) + " bytes");
  const PackSource from = {source.data(), float_dtype(source, "source"), source.stride(0), rows, k};
  const tw_quantize_weights_fn kernel =
      index ? entry_of(quantize_weights_kernels(), *index)
            : choose("quantize_weights", quantize_weights_kernels(), selected_isa());
  nb::gil_scoped_release release;
  const QuantizationError e =
      quantize_panels(kernel, dtype, group, from, out.data() + first * bytes, step * bytes);
  return {e.error, e.weight, e.finite};
}

void quantize_rows(int dtype, size_t index, int64_t group, const AnyRows& x, const Rows<int8_t>& q,
                   const Rows<float>& scale, const Rows<int32_t>& sum) {
  require_rows(x, "x");
  require_rows(q, "q");
  const auto rows = x.shape(0), k = x.shape(1);
  require(group == 0 || group == 32 || group == 64 || group == 128, "group must be 0, 32, 64 or 128");
  const auto groups = static_cast<size_t>(tw_quantized_groups(static_cast<int64_t>(k), group));
  require(q.shape(0) == rows &&
              static_cast<int64_t>(q.shape(1)) == tw_quantized_row(static_cast<int64_t>(k), group),
          "q must have x's rows, with whole groups");
  require(scale.shape(0) == groups && scale.shape(1) == rows && sum.shape(0) == groups &&
              sum.shape(1) == rows && scale.stride(0) == sum.stride(0),
          "scale and sum must be [groups, rows]");
  const tw_quantize_rows_args a = {static_cast<int32_t>(rows),
                                   static_cast<int32_t>(k),
                                   static_cast<int32_t>(group),
                                   float_dtype(x, "x"),
                                   x.data(),
                                   x.stride(0),
                                   q.data(),
                                   q.stride(0),
                                   scale.data(),
                                   sum.data(),
                                   scale.stride(0),
                                   tw_sum_factor(dtype)};
  entry_of(quantize_rows_kernels(), index)(&a);
}

void run(int dtype, size_t index, int64_t group, int64_t k, const Rows<int8_t>& x, const Rows<float>& scale,
         const Rows<int32_t>& sum, const Vector<uint8_t>& w, const AnyRows& y,
         const std::optional<Vector<float>>& bias, const std::optional<Rows<float>>& residual, int epilogue,
         int panel_begin, int panel_end) {
  require_format(dtype, group);
  require_rows(x, "x");
  require_rows(y, "y");
  require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "there is no such epilogue");
  const int pairs = tw_epilogue_panels(epilogue);
  const int64_t panels = panels_of(static_cast<int64_t>(y.shape(1))) * pairs;
  const auto groups = static_cast<size_t>(tw_quantized_groups(k, group));
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
  const tw_quantized_matmul_fn kernel = entry_of(quantized_matmul_kernels(dtype), index);
  nb::gil_scoped_release release;
  kernel(&a);
}

}  // namespace

void bind_quantized_kernels(nb::module_& m) {
  m.def(
      "quantized_matmul_table", [](int dtype) { return names(quantized_matmul_kernels(dtype)); }, "dtype"_a,
      "(name, instruction set, runnable here) of every kernel, best first");
  m.def("quantize_weights_table", [] { return names(quantize_weights_kernels()); });
  m.def("quantize_rows_table", [] { return names(quantize_rows_kernels()); });
  m.def("quantize_panels", &pack, "dtype"_a, "group"_a, "source"_a, "out"_a, "first"_a = 0, "step"_a = 1,
        "index"_a = nb::none(),
        "Quantizes source [rows, k] (float32, or uint16 for bfloat16) into panels of out (uint8), every "
        "step-th from "
        "first on: (sum of squared errors, sum of squared weights, whether all were finite). index: of the "
        "kernel in quantize_weights_table, by default the best");
  m.def("quantize_rows", &quantize_rows, "dtype"_a, "index"_a, "group"_a, "x"_a, "q"_a, "scale"_a, "sum"_a);
  m.def("run_quantized_matmul", &run, "dtype"_a, "index"_a, "group"_a, "k"_a, "x"_a, "scale"_a, "sum"_a,
        "w"_a, "y"_a, "bias"_a = nb::none(), "residual"_a = nb::none(), "epilogue"_a = 0, "panel_begin"_a = 0,
        "panel_end"_a = -1);
}

}  // namespace tensorwright
