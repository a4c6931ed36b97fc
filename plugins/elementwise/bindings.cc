// The elementwise kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "plugins/elementwise/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;  // rows of a wider buffer
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::device::cpu>;

// The caller's program must be sound: only programs of plans are checked.
void run_elementwise(size_t index, const nb::bytes& code, const std::vector<float>& constants,
                     const std::vector<Rows>& x, const std::optional<Vector>& w, const Matrix& y) {
  const tw_elementwise_fn kernel = kernel_at(elementwise_kernels(), index);
  require(code.size() <= TW_EW_BYTES && constants.size() <= TW_EW_CONSTANTS && x.size() <= TW_EW_INPUTS,
          "a program has at most 32 bytes, 4 constants and 4 inputs");
  uint8_t bytes[TW_EW_BYTES] = {};
  float numbers[TW_EW_CONSTANTS] = {};
  std::copy_n(static_cast<const uint8_t*>(code.data()), code.size(), bytes);
  std::copy(constants.begin(), constants.end(), numbers);
  tw_elementwise_args a = {};
  a.rows = static_cast<int32_t>(y.shape(0));
  a.width = static_cast<int32_t>(y.shape(1));
  a.code = bytes;
  a.constants = numbers;
  for (size_t i = 0; i < x.size(); ++i) {
    require(x[i].shape(0) == y.shape(0) && x[i].shape(1) == y.shape(1), "every x must have y's shape");
    require(x[i].shape(1) <= 1 || x[i].stride(1) == 1, "the columns of every x must be adjacent");
    a.x[i] = x[i].data();
    a.x_stride[i] = x[i].stride(0);
  }
  require(!w || w->size() == y.shape(1), "w must have y's columns");
  a.w = w ? w->data() : nullptr;
  require(y.dtype() == nb::dtype<float>() || y.dtype() == nb::dtype<uint16_t>(), "y: float32 or uint16");
  a.y_dtype = y.dtype() == nb::dtype<float>() ? TW_F32 : TW_BF16;
  a.y = const_cast<void*>(static_cast<const void*>(y.data()));
  require(y.shape(1) <= 1 || y.stride(1) == 1, "the columns of y must be adjacent");
  a.y_stride = y.stride(0);
  kernel(&a);
}

void bind_elementwise(nb::module_& m) {
  m.def(
      "elementwise_table", [] { return kernel_list(elementwise_kernels()); },
      "[(name, isa, runnable here)], best first.");
  m.def("run_elementwise", &run_elementwise, "index"_a, "code"_a, "constants"_a, "x"_a, "w"_a.none(), "y"_a,
        "Kernel `index` of elementwise_table: x float32 [rows, width] each, y float32 or uint16 in place.");
}

const RegisteredBindings registered_elementwise(&bind_elementwise);

}  // namespace
}  // namespace tensorwright
