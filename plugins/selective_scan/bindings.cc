// The selective_scan kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/selective_scan/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// x, dt and y: [tokens, C], b and c: [tokens, N], a and state, which changes: panels [ceil(C / 16) N, 16],
// vectors: d and dt_bias [2, C].
void run_selective_scan(size_t index, const std::vector<Array>& rows, const Array& a, const Array& vectors,
                        const Array& state, const Array& y, bool fresh) {
  require(rows.size() == 4, "there must be x, dt, b and c");
  const Array &x = rows[0], &dt = rows[1], &b = rows[2], &c = rows[3];
  for (const Array& array : rows) {
    require_rows(array, TW_F32, "x, dt, b and c");
    require(array.shape(0) == x.shape(0), "x, dt, b and c must have as many rows");
  }
  for (const auto& [array, name] : {std::pair{&a, "a"}, {&vectors, "vectors"}, {&state, "state"}}) {
    require_rows(*array, TW_F32, name);
    require(array->shape(0) < 2 || array->stride(0) == int64_t(array->shape(1)), "there must be no gaps");
  }
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  const size_t channels = x.shape(1), states = b.shape(1), panels = (channels + TW_LANES - 1) / TW_LANES;
  require(dt.shape(1) == channels && c.shape(1) == states && y.shape(0) == x.shape(0) &&
              y.shape(1) == channels && vectors.shape(0) == 2 && vectors.shape(1) == channels,
          "dt and y must be as large as x, c as large as b, and vectors [2, C]");
  for (const Array* array : {&a, &state}) {
    require(array->shape(0) == panels * states && array->shape(1) == TW_LANES,
            "a and state must be panels of 16 channels");
  }
  tw_selective_scan_args args{};
  args.tokens = static_cast<int32_t>(x.shape(0));
  args.channels = args.end = static_cast<int32_t>(channels);
  args.states = static_cast<int32_t>(states);
  args.fresh = fresh;
  args.y_dtype = y_dtype;
  args.x = static_cast<const float*>(x.data()), args.x_stride = x.stride(0);
  args.dt = static_cast<const float*>(dt.data()), args.dt_stride = dt.stride(0);
  args.b = static_cast<const float*>(b.data()), args.b_stride = b.stride(0);
  args.c = static_cast<const float*>(c.data()), args.c_stride = c.stride(0);
  args.a = static_cast<const float*>(a.data());
  args.d = static_cast<const float*>(vectors.data());
  args.dt_bias = args.d + channels;
  args.state = static_cast<float*>(const_cast<void*>(state.data()));
  args.y = const_cast<void*>(y.data());
  args.y_stride = y.stride(0);
  kernel_at(selective_scan_kernels(), index)(&args);
}

void bind_selective_scan(nb::module_& m) {
  m.def("selective_scan_table", [] { return kernel_list(selective_scan_kernels()); });
  m.def("run_selective_scan", &run_selective_scan, "index"_a, "rows"_a, "a"_a, "vectors"_a, "state"_a, "y"_a,
        "fresh"_a = true);
}

const RegisteredBindings registered_selective_scan(&bind_selective_scan);

}  // namespace
}  // namespace tensorwright
