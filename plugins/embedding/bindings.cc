// The embedding kernels in Python, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plugins/embedding/kernels.h"
#include "plugins/matmul/pack.h"
#include "runtime/bindings/kernel_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

void run_embedding(int dtype, size_t index, const Array& ids, const Array& table, const Array& y,
                   float scale) {
  require(array_dtype(ids, "ids") == TW_I32 && ids.ndim() == 1, "ids must be an int32 vector");
  require_rows(y, TW_F32, "y");
  require(y.shape(0) == ids.shape(0), "y must have a row per id");
  const int32_t* id = static_cast<const int32_t*>(ids.data());
  int32_t largest = -1;
  for (size_t t = 0; t < ids.size(); ++t) {
    require(id[t] >= 0, "ids must not be negative");
    largest = id[t] > largest ? id[t] : largest;
  }
  require_packed(table, dtype, panels_of(largest + 1), static_cast<int64_t>(y.shape(1)));
  tw_embedding_args a = {static_cast<int32_t>(ids.size()),
                         static_cast<int32_t>(y.shape(1)),
                         id,
                         table.data(),
                         scale,
                         const_cast<float*>(static_cast<const float*>(y.data())),
                         y.stride(0),
                         0};
  kernel_at(embedding_kernels(dtype), index)(&a);
}

void bind_embedding(nb::module_& m) {
  m.def("embedding_table", [](int dtype) { return kernel_list(embedding_kernels(dtype)); }, "dtype"_a);
  m.def("run_embedding", &run_embedding, "dtype"_a, "index"_a, "ids"_a, "table"_a, "y"_a, "scale"_a = 1.0f);
}

const RegisteredBindings registered_embedding(&bind_embedding);

}  // namespace
}  // namespace tensorwright
