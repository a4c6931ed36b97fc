// The causal_conv kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/causal_conv/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// x and y: [tokens, C], w: [W, C], bias: [1, C], state: [W - 1, C], which changes.
void run_causal_conv(size_t index, const Array& x, const Array& w, const std::optional<Array>& bias,
                     const Array& state, const Array& y, bool fresh, int activation) {
  require(activation >= 0 && activation < TW_CONV_ACTIVATIONS, "there is no such activation");
  for (const auto& [array, name] : {std::pair{&x, "x"}, {&w, "w"}, {&state, "state"}}) {
    require_rows(*array, TW_F32, name);
    const bool adjacent =
        array->shape(0) < 2 || array->size() == 0 || array->stride(0) == int64_t(x.shape(1));
    require(array->shape(1) == x.shape(1) && (array == &x || adjacent),
            "every array must have as many columns as x, and w and state no gaps");
  }
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1), "y must be as large as x");
  require(w.shape(0) >= 1 && w.shape(0) <= TW_CONV_MAX_WIDTH && state.shape(0) + 1 == w.shape(0),
          "w must have one row more than state, and not too many");
  tw_causal_conv_args a{};
  a.tokens = static_cast<int32_t>(x.shape(0));
  a.width = static_cast<int32_t>(w.shape(0));
  a.channels = a.end = static_cast<int32_t>(x.shape(1));
  a.fresh = fresh;
  a.activation = activation;
  a.y_dtype = y_dtype;
  a.x = static_cast<const float*>(x.data());
  a.x_stride = x.stride(0);
  a.w = static_cast<const float*>(w.data());
  if (bias) {
    require_rows(*bias, TW_F32, "bias");
    require(bias->shape(0) == 1 && bias->shape(1) == x.shape(1), "bias must be [1, C]");
    a.bias = static_cast<const float*>(bias->data());
  }
  a.state = static_cast<float*>(const_cast<void*>(state.data()));
  a.y = const_cast<void*>(y.data());
  a.y_stride = y.stride(0);
  kernel_at(causal_conv_kernels(), index)(&a);
}

void bind_causal_conv(nb::module_& m) {
  m.def("causal_conv_table", [] { return kernel_list(causal_conv_kernels()); });
  m.def("run_causal_conv", &run_causal_conv, "index"_a, "x"_a, "w"_a, "bias"_a.none(), "state"_a, "y"_a,
        "fresh"_a = true, "activation"_a = 0);
}

const RegisteredBindings registered_causal_conv(&bind_causal_conv);

}  // namespace
}  // namespace tensorwright
