// The rms_norm kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/rms_norm/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using OptionalArray = std::optional<Array>;

void run_rms_norm(size_t index, const Array& x, const Array& w, const Array& y, const OptionalArray& residual,
                  const OptionalArray& sum, float eps, float weight_offset) {
  require(x.ndim() == 2 && y.ndim() == 2, "x and y must be [rows, width]");
  const int64_t rows = rows_of(x), width = static_cast<int64_t>(x.shape(1)), size = rows * width;
  require(residual.has_value() == sum.has_value(), "residual and sum come together");
  tw_rms_norm_args a = {};
  a.rows = static_cast<int32_t>(rows);
  a.width = static_cast<int32_t>(width);
  a.eps = eps;
  a.weight_offset = weight_offset;
  a.y_dtype = act_dtype(y, "y");
  a.x = array_data<float>(x, TW_F32, size, "x");
  a.w = array_data<float>(w, TW_F32, width, "w");
  a.y = array_data<void>(y, a.y_dtype, size, "y");
  a.x_stride = x.stride(0);
  a.y_stride = y.stride(0);
  if (residual) {
    require(residual->ndim() == 2 && sum->ndim() == 2, "residual and sum must be [rows, width]");
    a.residual = array_data<float>(*residual, TW_F32, size, "residual");
    a.sum = array_data<float>(*sum, TW_F32, size, "sum");
    a.residual_stride = residual->stride(0);
    a.sum_stride = sum->stride(0);
  }
  kernel_at(rms_norm_kernels(), index)(&a);
}

void bind_rms_norm(nb::module_& m) {
  m.def(
      "rms_norm_table", [] { return kernel_list(rms_norm_kernels()); },
      "[(name, isa, runnable here)], best first.");
  m.def("run_rms_norm", &run_rms_norm, "index"_a, "x"_a, "w"_a, "y"_a, "residual"_a = nb::none(),
        "sum"_a = nb::none(), "eps"_a = 1e-6f, "weight_offset"_a = 0.0f);
}

const RegisteredBindings registered_rms_norm(&bind_rms_norm);

}  // namespace
}  // namespace tensorwright
