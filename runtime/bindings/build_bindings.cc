// The packer of quantized weights and the products with them in Python. Builds use them: in numpy they take
// minutes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <string>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/quantized_matmul/kernels.h"
#include "plugins/weight_only_matmul/kernels.h"
#include "runtime/bindings/bindings.h"
#include "runtime/bindings/quantize_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Results = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

QuantizationSums quantize_with_best(int dtype, int64_t group, const SourceRows& source, const Bytes& out,
                                    int64_t first, int64_t step) {
  const tw_quantize_weights_fn kernel =
      choose("quantize_weights", quantize_weights_kernels(), selected_isa());
  return quantize(kernel, dtype, group, source, out, first, step);
}

// Rows of x, quantized as the engine quantizes the activations before a product. All kernels give the same
// bits.
class QuantizedRows {
 public:
  QuantizedRows(int dtype, int64_t group, const SourceRows& x)
      : dtype_(dtype), group_(group), rows_(x.shape(0)), k_(static_cast<int64_t>(x.shape(1))) {
    require_quantized_format(dtype, group, k_);
    require_contiguous_rows(x, "x");
    row_ = tw_quantized_row(k_, group);
    const size_t groups = rows_ * static_cast<size_t>(tw_activation_groups(dtype, k_, group));
    values_.resize(rows_ * static_cast<size_t>(row_));
    scales_.resize(groups);
    sums_.resize(groups);
    const tw_quantize_rows_args a = {static_cast<int32_t>(rows_),
                                     static_cast<int32_t>(k_),
                                     static_cast<int32_t>(tw_activation_group(dtype, k_, group)),
                                     float_dtype(x, "x"),
                                     x.data(),
                                     x.stride(0),
                                     values_.data(),
                                     row_,
                                     scales_.data(),
                                     sums_.data(),
                                     static_cast<int64_t>(rows_),
                                     tw_sum_factor(dtype)};
    choose("quantize_rows", quantize_rows_kernels(), selected_isa())(&a);
  }

  // y [rows, n] = x w^T. Any thread may call it.
  void product(const Bytes& w, const Results& y) const {
    require_contiguous_rows(y, "y");
    const auto n = static_cast<int64_t>(y.shape(1));
    const int64_t panels = panels_of(n), bytes = panels * tw_quantized_panel_bytes(dtype_, k_, group_);
    require(y.shape(0) == rows_, "y must have as many rows as x");
    require(static_cast<int64_t>(w.size()) >= bytes, "w must have " + std::to_string(bytes) + " bytes");
    tw_quantized_matmul_args a = {};
    a.matmul.rows = static_cast<int32_t>(rows_);
    a.matmul.k = static_cast<int32_t>(k_);
    a.matmul.n = static_cast<int32_t>(n);
    a.matmul.panel_end = static_cast<int32_t>(panels);
    a.matmul.epilogue = TW_EPILOGUE_NONE;
    a.matmul.y_dtype = TW_F32;
    a.matmul.x = values_.data();
    a.matmul.x_stride = row_;
    a.matmul.w = w.data();
    a.matmul.y = y.data();
    a.matmul.y_stride = y.stride(0);
    a.group = static_cast<int32_t>(group_);
    a.x_scale = scales_.data();
    a.x_sum = sums_.data();
    a.group_stride = static_cast<int64_t>(rows_);
    const tw_quantized_matmul_fn kernel =
        choose("quantized_matmul", quantized_matmul_kernels(dtype_), selected_isa());
    nb::gil_scoped_release release;
    kernel(&a);
  }

 private:
  int dtype_;
  int64_t group_;
  size_t rows_;
  int64_t k_, row_;
  std::vector<int8_t> values_;
  std::vector<float> scales_;  // [groups, rows]
  std::vector<int32_t> sums_;  // [groups, rows]
};

// Rows of x as they are, for products with weights that leave activations alone.
class FloatRows {
 public:
  explicit FloatRows(const SourceRows& x)
      : dtype_(float_dtype(x, "x")), rows_(x.shape(0)), k_(static_cast<int64_t>(x.shape(1))) {
    require_contiguous_rows(x, "x");
    const auto bytes = tw_dtype_bytes(dtype_);
    data_.resize(rows_ * static_cast<size_t>(k_) * bytes);
    for (size_t r = 0; r < rows_; ++r) {
      const auto* from = static_cast<const char*>(x.data()) + static_cast<size_t>(x.stride(0)) * r * bytes;
      std::memcpy(data_.data() + r * static_cast<size_t>(k_) * bytes, from, static_cast<size_t>(k_) * bytes);
    }
  }

  // y [rows, n] = x w^T. Any thread may call it.
  void product(int dtype, int64_t group, const Bytes& w, const Results& y) const {
    require_quantized_format(dtype, group, k_);
    require_contiguous_rows(y, "y");
    const auto n = static_cast<int64_t>(y.shape(1));
    const int64_t panels = panels_of(n), bytes = panels * tw_quantized_panel_bytes(dtype, k_, group);
    require(y.shape(0) == rows_, "y must have as many rows as x");
    require(static_cast<int64_t>(w.size()) >= bytes, "w must have " + std::to_string(bytes) + " bytes");
    tw_weight_only_matmul_args a = {};
    a.matmul.rows = static_cast<int32_t>(rows_);
    a.matmul.k = static_cast<int32_t>(k_);
    a.matmul.n = static_cast<int32_t>(n);
    a.matmul.panel_end = static_cast<int32_t>(panels);
    a.matmul.epilogue = TW_EPILOGUE_NONE;
    a.matmul.y_dtype = TW_F32;
    a.matmul.x = data_.data();
    a.matmul.x_stride = k_;
    a.matmul.w = w.data();
    a.matmul.y = y.data();
    a.matmul.y_stride = y.stride(0);
    a.w_dtype = dtype;
    a.group = static_cast<int32_t>(group);
    const tw_weight_only_matmul_fn kernel =
        choose("weight_only_matmul", weight_only_matmul_kernels(dtype_), selected_isa());
    nb::gil_scoped_release release;
    kernel(&a);
  }

 private:
  int dtype_;
  size_t rows_;
  int64_t k_;
  std::vector<char> data_;
};

}  // namespace

void bind_build(nb::module_& m) {
  m.def("quantize_panels", &quantize_with_best, "dtype"_a, "group"_a, "source"_a, "out"_a, "first"_a = 0,
        "step"_a = 1,
        "Quantizes source [rows, k] (float32, or uint16 for bfloat16) into panels of out (uint8); panel i "
        "goes to "
        "place first + i * step. dtype: as in engine_format/dtypes.py. group: weights per scale, 0 for one "
        "scale "
        "per row. "
        "Returns (sum of squared errors, sum of squared weights, whether all were finite). Raises "
        "InvalidOptionError.");
  nb::class_<QuantizedRows>(
      m, "QuantizedRows", "Rows that are quantized as the engine quantizes the activations before a product.")
      .def(nb::init<int, int64_t, const SourceRows&>(), "dtype"_a, "group"_a, "x"_a,
           "x [rows, k] is float32, or uint16 for bfloat16; dtype and group are those of the weights, as in "
           "quantize_panels. Raises InvalidOptionError.")
      .def("product", &QuantizedRows::product, "w"_a, "y"_a,
           "Writes the product of x and the first n rows of a matrix into y [rows, n]; w holds the panels of "
           "these rows. Any thread may call it. Raises InvalidOptionError.");
  nb::class_<FloatRows>(m, "FloatRows", "Rows for products with weights that leave activations as they are.")
      .def(nb::init<const SourceRows&>(), "x"_a,
           "x [rows, k] is float32, or uint16 for bfloat16. It is copied. Raises InvalidOptionError.")
      .def("product", &FloatRows::product, "dtype"_a, "group"_a, "w"_a, "y"_a,
           "Writes the product of x and the first n rows of a matrix into y [rows, n]; w holds the panels of "
           "these rows, of this dtype and group. Any thread may call it. Raises InvalidOptionError.");
}

}  // namespace tensorwright
