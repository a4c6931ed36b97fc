// Adapters in Python: what an executor makes of their weights, for requests and for steps.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_ADAPTERS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_ADAPTERS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/core/executor/adapters.h"

namespace tensorwright {

// An adapter that Python holds. It lives as long as anybody holds it, a request included.
struct PyAdapter {
  SharedAdapter adapter;
};

// float32, or uint16 for the bits of bfloat16
using AdapterMatrix =
    nanobind::ndarray<nanobind::ro, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using AdapterScales =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
// (first row of a, first column of the addend, b [columns, rank])
using AdapterPartTuple = std::tuple<int32_t, int32_t, AdapterMatrix>;
// (instruction, a [rank, k], parts, the factors of the rows of a [rank])
using AdapterProductTuple =
    std::tuple<int32_t, AdapterMatrix, std::vector<AdapterPartTuple>, std::optional<AdapterScales>>;

// Makes an adapter; the caller holds the GIL, which is free while the weights are packed.
PyAdapter make_adapter(const AdapterProducts& maker, const std::string& key,
                       const std::vector<AdapterProductTuple>& products);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_ADAPTERS_H_
