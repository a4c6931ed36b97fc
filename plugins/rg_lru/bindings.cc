// The rg_lru kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/rg_lru/kernels.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// rows: x, input and decay [tokens, C]; vectors: rate, input_bias and decay_bias [3, C]; state: [1, C], which
// changes; y: [tokens, C].
void run_rg_lru(size_t index, const std::vector<Array>& rows, const Array& vectors, const Array& state,
                const Array& y, bool fresh) {
  require(rows.size() == 3, "there must be x, input and decay");
  const size_t tokens = rows[0].shape(0), channels = rows[0].shape(1);
  for (const Array& array : rows) {
    require_rows(array, TW_F32, "x, input and decay");
    require(array.shape(0) == tokens && array.shape(1) == channels,
            "x, input and decay must be [tokens, C] each");
  }
  require_rows(vectors, TW_F32, "vectors");
  require_rows(state, TW_F32, "state");
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  require(vectors.shape(0) == 3 && vectors.shape(1) == channels &&
              vectors.stride(0) == static_cast<int64_t>(channels) && state.shape(0) == 1 &&
              state.shape(1) == channels && y.shape(0) == tokens && y.shape(1) == channels,
          "vectors must be [3, C], state [1, C] and y [tokens, C]");
  tw_rg_lru_args args{};
  args.tokens = static_cast<int32_t>(tokens);
  args.end = static_cast<int32_t>(channels);
  args.fresh = fresh;
  args.y_dtype = y_dtype;
  args.x = static_cast<const float*>(rows[0].data()), args.x_stride = rows[0].stride(0);
  args.input = static_cast<const float*>(rows[1].data()), args.input_stride = rows[1].stride(0);
  args.decay = static_cast<const float*>(rows[2].data()), args.decay_stride = rows[2].stride(0);
  args.rate = static_cast<const float*>(vectors.data());
  args.input_bias = args.rate + channels;
  args.decay_bias = args.input_bias + channels;
  args.state = static_cast<float*>(const_cast<void*>(state.data()));
  args.y = const_cast<void*>(y.data());
  args.y_stride = y.stride(0);
  kernel_at(rg_lru_kernels(), index)(&args);
}

void bind_rg_lru(nb::module_& m) {
  m.def("rg_lru_table", [] { return kernel_list(rg_lru_kernels()); });
  m.def("run_rg_lru", &run_rg_lru, "index"_a, "rows"_a, "vectors"_a, "state"_a, "y"_a, "fresh"_a = true);
}

const RegisteredBindings registered_rg_lru(&bind_rg_lru);

}  // namespace
}  // namespace tensorwright
