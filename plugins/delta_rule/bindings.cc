// The delta_rule kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/delta_rule/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// row: [tokens, 2 K + P], dt_beta: [tokens, 2] or [tokens, K + 1], state: [K, P], which changes, y: [tokens,
// P]. numbers: a, beta_scale.
void run_delta_rule(size_t index, const Array& row, const Array& dt_beta, const Array& state, const Array& y,
                    const std::vector<float>& numbers, bool fresh) {
  for (const auto& [array, name] : {std::pair{&row, "row"}, {&dt_beta, "dt_beta"}, {&state, "state"}}) {
    require_rows(*array, TW_F32, name);
  }
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  const size_t tokens = row.shape(0), keys = state.shape(0), width = state.shape(1);
  const size_t decays = dt_beta.shape(1) - 1;
  require(row.shape(1) == width + 2 * keys && dt_beta.shape(0) == tokens && (decays == 1 || decays == keys) &&
              y.shape(0) == tokens && y.shape(1) == width &&
              (keys < 2 || state.stride(0) == int64_t(width)) && keys <= TW_DELTA_MAX_KEYS,
          "row must be [tokens, 2 K + P] for state [K, P], dt_beta [tokens, 2 or K + 1] and y [tokens, P]");
  require(numbers.size() == 2, "there must be 2 numbers");
  tw_delta_rule_args a{};
  a.tokens = static_cast<int32_t>(tokens);
  a.keys = static_cast<int32_t>(keys);
  a.width = static_cast<int32_t>(width);
  a.decays = static_cast<int32_t>(decays);
  a.fresh = fresh;
  a.y_dtype = y_dtype;
  a.a = numbers[0], a.beta_scale = numbers[1];
  a.q = static_cast<const float*>(row.data());
  a.k = a.q + keys;
  a.v = a.k + keys;
  a.q_stride = row.stride(0);
  a.dt = static_cast<const float*>(dt_beta.data());
  a.beta = a.dt + decays;
  a.dt_stride = a.beta_stride = dt_beta.stride(0);
  a.state = static_cast<float*>(const_cast<void*>(state.data()));
  a.y = const_cast<void*>(y.data());
  a.y_stride = y.stride(0);
  kernel_at(delta_rule_kernels(), index)(&a);
}

void bind_delta_rule(nb::module_& m) {
  m.def("delta_rule_table", [] { return kernel_list(delta_rule_kernels()); });
  m.def("run_delta_rule", &run_delta_rule, "index"_a, "row"_a, "dt_beta"_a, "state"_a, "y"_a, "numbers"_a,
        "fresh"_a = true);
}

const RegisteredBindings registered_delta_rule(&bind_delta_rule);

}  // namespace
}  // namespace tensorwright
