// The state_space_scan kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/state_space_scan/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// row: [tokens, P + 2 N], dt: [tokens, 1], state: [N, P], which changes, y: [tokens, P]. numbers: a, d,
// dt_bias, dt_min, dt_max.
void run_state_space_scan(size_t index, const Array& row, const Array& dt, const Array& state, const Array& y,
                          const std::vector<float>& numbers, bool fresh) {
  for (const auto& [array, name] : {std::pair{&row, "row"}, {&dt, "dt"}, {&state, "state"}}) {
    require_rows(*array, TW_F32, name);
  }
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  const size_t tokens = row.shape(0), states = state.shape(0), width = state.shape(1);
  require(row.shape(1) == width + 2 * states && dt.shape(0) == tokens && dt.shape(1) == 1 &&
              y.shape(0) == tokens && y.shape(1) == width &&
              (states < 2 || state.stride(0) == int64_t(width)),
          "row must be [tokens, P + 2 N] for state [N, P], dt [tokens, 1] and y [tokens, P]");
  require(numbers.size() == 5, "there must be 5 numbers");
  tw_state_space_scan_args a{};
  a.tokens = static_cast<int32_t>(tokens);
  a.width = static_cast<int32_t>(width);
  a.states = static_cast<int32_t>(states);
  a.fresh = fresh;
  a.y_dtype = y_dtype;
  a.a = numbers[0], a.d = numbers[1], a.dt_bias = numbers[2], a.dt_min = numbers[3], a.dt_max = numbers[4];
  a.x = static_cast<const float*>(row.data());
  a.b = a.x + width;
  a.c = a.b + states;
  a.x_stride = row.stride(0);
  a.dt = static_cast<const float*>(dt.data());
  a.dt_stride = dt.stride(0);
  a.state = static_cast<float*>(const_cast<void*>(state.data()));
  a.y = const_cast<void*>(y.data());
  a.y_stride = y.stride(0);
  kernel_at(state_space_scan_kernels(), index)(&a);
}

void bind_state_space_scan(nb::module_& m) {
  m.def("state_space_scan_table", [] { return kernel_list(state_space_scan_kernels()); });
  m.def("run_state_space_scan", &run_state_space_scan, "index"_a, "row"_a, "dt"_a, "state"_a, "y"_a,
        "numbers"_a, "fresh"_a = true);
}

const RegisteredBindings registered_state_space_scan(&bind_state_space_scan);

}  // namespace
}  // namespace tensorwright
