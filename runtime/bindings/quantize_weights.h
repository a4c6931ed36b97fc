// Packs quantized weights into the caller's array, for builds and for the tests of the kernels.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_QUANTIZE_WEIGHTS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_QUANTIZE_WEIGHTS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <tuple>

#include "plugins/quantized_matmul/quantize.h"
#include "runtime/bindings/arrays.h"

namespace tensorwright {

using SourceRows = nanobind::ndarray<nanobind::ro, nanobind::ndim<2>, nanobind::device::cpu>;
using Bytes = nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
// The sum of squared errors, the sum of squared weights, and whether all weights were finite.
using QuantizationSums = std::tuple<double, double, bool>;

// Throws Error{"InvalidOptionError"} unless kernels exist for rows of k in the format. group: weights per
// scale, 0 for one scale per row.
void require_quantized_format(int dtype, int64_t group, int64_t k);

// Quantizes source [rows, k] into panels of out: panel i goes to place first + i * step, so step 2 leaves
// room for the other half of a gated layer. Throws Error{"InvalidOptionError"}.
QuantizationSums quantize(tw_quantize_weights_fn kernel, int dtype, int64_t group, const SourceRows& source,
                          const Bytes& out, int64_t first, int64_t step);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_QUANTIZE_WEIGHTS_H_
