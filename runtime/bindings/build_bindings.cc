// The packer of quantized weights in Python, for builds: the same work in numpy takes minutes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include "plugins/quantized_matmul/kernels.h"
#include "runtime/bindings/bindings.h"
#include "runtime/bindings/quantize_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

QuantizationSums quantize_with_best(int dtype, int64_t group, const SourceRows& source, const Bytes& out,
                                    int64_t first, int64_t step) {
  const tw_quantize_weights_fn kernel =
      choose("quantize_weights", quantize_weights_kernels(), selected_isa());
  return quantize(kernel, dtype, group, source, out, first, step);
}

}  // namespace

void bind_build(nb::module_& m) {
  m.def("quantize_panels", &quantize_with_best, "dtype"_a, "group"_a, "source"_a, "out"_a, "first"_a = 0,
        "step"_a = 1,
        "Quantizes source [rows, k] (float32, or uint16 for bfloat16) into panels of out (uint8); panel i "
        "goes to "
        "place first + i * step. dtype: 3 for int8, 4 for int4. group: weights per scale, 0 for one scale "
        "per row. "
        "Returns (sum of squared errors, sum of squared weights, whether all were finite). Raises "
        "InvalidOptionError.");
}

}  // namespace tensorwright
