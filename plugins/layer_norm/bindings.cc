// The layer_norm kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/layer_norm/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::device::cpu>;

template <typename Other>
void require_like(const FloatRows& x, const Other& other) {
  require(other.shape(0) == x.shape(0) && other.shape(1) == x.shape(1) &&
              (other.stride(1) == 1 || other.shape(1) <= 1),
          "x, y, residual and sum must have x's shape and contiguous rows");
}

void run_layer_norm(size_t index, const FloatRows& x, const Vector& w, const std::optional<Vector>& b,
                    const Matrix& y, const std::optional<FloatRows>& residual,
                    const std::optional<FloatRows>& sum, float eps, float weight_offset) {
  const tw_layer_norm_fn kernel = kernel_at(layer_norm_kernels(), index);
  require_like(x, x);
  require_like(x, y);
  require(y.dtype() == nb::dtype<float>() || y.dtype() == nb::dtype<uint16_t>(), "y: float32 or uint16");
  require(w.size() == x.shape(1) && (!b || b->size() == x.shape(1)), "w and b must have x's columns");
  require(residual.has_value() == sum.has_value(), "residual and sum come together");
  tw_layer_norm_args a = {};
  a.rows = static_cast<int32_t>(x.shape(0));
  a.width = static_cast<int32_t>(x.shape(1));
  a.eps = eps;
  a.weight_offset = weight_offset;
  a.y_dtype = y.dtype() == nb::dtype<float>() ? TW_F32 : TW_BF16;
  a.x = x.data();
  a.w = w.data();
  a.b = b ? b->data() : nullptr;
  a.y = const_cast<void*>(static_cast<const void*>(y.data()));
  a.x_stride = x.stride(0);
  a.y_stride = y.stride(0);
  if (residual) {
    require_like(x, *residual);
    require_like(x, *sum);
    a.residual = residual->data();
    a.residual_stride = residual->stride(0);
    a.sum = sum->data();
    a.sum_stride = sum->stride(0);
  }
  kernel(&a);
}

void bind_layer_norm(nb::module_& m) {
  m.def(
      "layer_norm_table", [] { return kernel_list(layer_norm_kernels()); },
      "[(name, isa, runnable here)], best first.");
  m.def("run_layer_norm", &run_layer_norm, "index"_a, "x"_a, "w"_a, "b"_a.none(), "y"_a,
        "residual"_a = nb::none(), "sum"_a = nb::none(), nb::kw_only(), "eps"_a = 1e-6f,
        "weight_offset"_a = 0.0f,
        "Kernel `index` of layer_norm_table: x float32 [rows, width], y float32 or uint16 in place.");
}

const RegisteredBindings registered_layer_norm(&bind_layer_norm);

}  // namespace
}  // namespace tensorwright
