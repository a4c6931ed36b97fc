// The swiglu kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/swiglu/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void run_swiglu(size_t index, const Array& x, const Array& y, int activation) {
  require(activation >= 0 && activation < TW_ACTIVATIONS, "there is no such activation");
  require_rows(x, TW_F32, "x");
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  require(y.shape(0) == x.shape(0) && 2 * y.shape(1) == x.shape(1),
          "x must be [rows, 2 * width] for y [rows, width]");
  tw_swiglu_args a = {static_cast<int32_t>(x.shape(0)),
                      static_cast<int32_t>(y.shape(1)),
                      y_dtype,
                      activation,
                      static_cast<const float*>(x.data()),
                      x.stride(0),
                      const_cast<void*>(static_cast<const void*>(y.data())),
                      y.stride(0)};
  kernel_at(swiglu_kernels(), index)(&a);
}

void bind_swiglu(nb::module_& m) {
  m.def("swiglu_table", [] { return kernel_list(swiglu_kernels()); });
  m.def("run_swiglu", &run_swiglu, "index"_a, "x"_a, "y"_a, "activation"_a = 0);
}

const RegisteredBindings registered_swiglu(&bind_swiglu);

}  // namespace
}  // namespace tensorwright
