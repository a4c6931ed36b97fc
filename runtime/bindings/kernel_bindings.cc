// Single kernels for tests and benchmarks: the dispatch tables, matmul, embedding, swiglu, packing. Arrays of
// bfloat16 travel as uint16.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/common/dispatch.h"
#include "plugins/matmul/pack.h"
#include "runtime/bindings/bindings.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

void bind_attention_kernels(nb::module_& m);    // kernel_bindings_attention.cc
void bind_elementwise_kernels(nb::module_& m);  // kernel_bindings_elementwise.cc
void bind_layer_norm_kernels(nb::module_& m);   // kernel_bindings_layer_norm.cc
void bind_quantized_kernels(nb::module_& m);    // kernel_bindings_quantized.cc
void bind_benchmarks(nb::module_& m);           // benchmark_bindings.cc

namespace {

using Array = nb::ndarray<nb::device::cpu>;
using Table = std::vector<std::tuple<std::string, std::string, bool>>;
using OptionalArray = std::optional<Array>;

void require(bool holds, const std::string& message) {
  if (!holds) throw Error("InvalidOptionError", message);
}

int array_dtype(const Array& array, const char* what) {
  if (array.dtype() == nb::dtype<float>()) return TW_F32;
  if (array.dtype() == nb::dtype<uint16_t>()) return TW_BF16;
  require(array.dtype() == nb::dtype<int32_t>(),
          std::string(what) + " must be float32, uint16 (bfloat16) or int32");
  return TW_I32;
}

// A matrix whose rows are contiguous; rows may be strided.
void require_rows(const Array& array, int dtype, const char* what) {
  require(array_dtype(array, what) == dtype, std::string(what) + " has the wrong dtype");
  require(array.ndim() == 2 && (array.stride(1) == 1 || array.shape(1) <= 1 || array.size() == 0),
          std::string(what) + " must be two-dimensional with contiguous rows");
}

const float* floats(const OptionalArray& array, int64_t at_least, const char* what) {
  if (!array) return nullptr;
  require(array_dtype(*array, what) == TW_F32 && array->ndim() == 1 && array->stride(0) == 1 &&
              static_cast<int64_t>(array->size()) >= at_least,
          std::string(what) + " must be a contiguous float32 vector of at least " + std::to_string(at_least));
  return static_cast<const float*>(array->data());
}

void require_packed(const Array& packed, int dtype, int64_t panels, int64_t k) {
  require(packed.dtype() == nb::dtype<uint8_t>() && packed.ndim() == 1,
          "packed weights must be a uint8 vector");
  const size_t bytes = static_cast<size_t>(panels) * tw_panel_bytes(dtype, static_cast<size_t>(k));
  require(packed.size() >= bytes, "packed weights must have " + std::to_string(bytes) + " bytes, not " +
                                      std::to_string(packed.size()));
}

template <typename Fn>
Table names(std::span<const KernelEntry<Fn>> table) {
  Table rows;
  for (const auto& entry : table) {
    const bool runnable = refusal(entry.isa, entry.extra, Isa::avx512).empty();
    rows.emplace_back(entry.name, isa_name(entry.isa), runnable);
  }
  return rows;
}

template <typename Fn>
Fn entry_of(std::span<const KernelEntry<Fn>> table, size_t index) {
  require(index < table.size(), "kernel index out of range");
  const auto& entry = table[index];
  const std::string reason = refusal(entry.isa, entry.extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(entry.name) + ": " + reason);
  return entry.fn;
}

// y (float32 or uint16, [rows, n]) is written in place; panel_end < 0 means all panels.
void run_matmul(int dtype, size_t index, const Array& x, const Array& w, const Array& y,
                const OptionalArray& bias, const OptionalArray& residual, int epilogue, int panel_begin,
                int panel_end) {
  require_rows(x, dtype, "x");
  const int y_dtype = array_dtype(y, "y");
  require_rows(y, y_dtype, "y");
  require(y_dtype != TW_I32 && y.shape(0) == x.shape(0),
          "y must be float32 or uint16 with as many rows as x");
  require(epilogue >= 0 && epilogue <= TW_EPILOGUE_LAST, "there is no such epilogue");
  const int64_t panels = panels_of(static_cast<int64_t>(y.shape(1))) * tw_epilogue_panels(epilogue);
  require_packed(w, dtype, panels, static_cast<int64_t>(x.shape(1)));
  if (panel_end < 0) panel_end = static_cast<int>(panels);
  require(0 <= panel_begin && panel_begin <= panel_end && panel_end <= panels, "panel range out of bounds");
  require(epilogue == TW_EPILOGUE_NONE || (panel_begin % 2 == 0 && panel_end % 2 == 0),
          "gated panels come in pairs");
  tw_matmul_args a = {};
  a.rows = static_cast<int32_t>(x.shape(0));
  a.k = static_cast<int32_t>(x.shape(1));
  a.n = static_cast<int32_t>(y.shape(1));
  a.panel_begin = panel_begin;
  a.panel_end = panel_end;
  a.epilogue = epilogue;
  a.y_dtype = y_dtype;
  a.x = x.data();
  a.x_stride = x.stride(0);
  a.w = w.data();
  a.bias = floats(bias, panels * TW_LANES, "bias");
  if (residual) {
    require_rows(*residual, TW_F32, "residual");
    require(residual->shape(0) == y.shape(0) && residual->shape(1) == y.shape(1),
            "residual must have y's shape");
    a.residual = static_cast<const float*>(residual->data());
    a.residual_stride = residual->stride(0);
  }
  a.y = const_cast<void*>(static_cast<const void*>(y.data()));
  a.y_stride = y.stride(0);
  const tw_matmul_fn run = entry_of(matmul_kernels(dtype), index);
  nb::gil_scoped_release release;
  run(&a);
}

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
  entry_of(embedding_kernels(dtype), index)(&a);
}

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
  entry_of(swiglu_kernels(), index)(&a);
}

PackSource source_of(const Array& rows, const char* what) {
  const int dtype = array_dtype(rows, what);
  require(dtype != TW_I32, std::string(what) + " must be float32 or uint16 (bfloat16)");
  require_rows(rows, dtype, what);
  return {rows.data(), dtype, rows.stride(0), static_cast<int64_t>(rows.shape(0)),
          static_cast<int64_t>(rows.shape(1))};
}

void require_weight_dtype(int dtype) {
  require(dtype == TW_F32 || dtype == TW_BF16,
          "panels hold float32 (0) or bfloat16 (1), not dtype " + std::to_string(dtype));
}

// A new numpy vector of `count` elements that frees itself.
template <typename T>
nb::ndarray<nb::numpy, T> new_array(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (size_t dim : shape) count *= dim;
  T* data = new T[count ? count : 1];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

nb::object pack(int dtype, const Array& rows) {
  require_weight_dtype(dtype);
  const PackSource source = source_of(rows, "rows");
  const size_t bytes = tw_panel_bytes(dtype, static_cast<size_t>(source.k));
  auto out = new_array<uint8_t>({static_cast<size_t>(panels_of(source.rows)) * bytes});
  {
    nb::gil_scoped_release release;
    pack_panels(dtype, source, out.data());
  }
  return out.cast();
}

nb::object pack_swiglu(int dtype, const Array& gate, const Array& up) {
  require_weight_dtype(dtype);
  const PackSource g = source_of(gate, "gate"), u = source_of(up, "up");
  require(g.rows == u.rows && g.k == u.k, "gate and up must have the same shape");
  const size_t bytes = tw_panel_bytes(dtype, static_cast<size_t>(g.k));
  auto out = new_array<uint8_t>({2 * static_cast<size_t>(panels_of(g.rows)) * bytes});
  {
    nb::gil_scoped_release release;
    pack_swiglu_panels(dtype, g, u, out.data());
  }
  return out.cast();
}

template <typename T>
nb::object unpack_as(int dtype, const Array& packed, int64_t rows, int64_t k) {
  auto out = new_array<T>({static_cast<size_t>(rows), static_cast<size_t>(k)});
  unpack_panels(dtype, packed.data(), rows, k, out.data());
  return out.cast();
}

nb::object unpack(int dtype, const Array& packed, int64_t rows, int64_t k) {
  require_weight_dtype(dtype);
  require(rows >= 0 && k >= 0, "rows and k must not be negative");
  require_packed(packed, dtype, panels_of(rows), k);
  return dtype == TW_BF16 ? unpack_as<uint16_t>(dtype, packed, rows, k)
                          : unpack_as<float>(dtype, packed, rows, k);
}

nb::dict features() {
  const CpuFeatures& f = cpu_features();
  nb::dict d;
  for (const CpuFeatureName& feature : kCpuFeatureNames) d[feature.name] = f.*(feature.field);
  return d;
}

std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> dispatch_choices() {
  std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> rows;
  for (const auto& c : explain_dispatch()) rows.emplace_back(c.family, c.taken, c.refused);
  return rows;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("cpu_features", &features,
        "What the processor and the operating system offer, by name, less what TENSORWRIGHT_CPU_WITHOUT "
        "lists.");
  m.def(
      "isa", [] { return std::string(isa_name(selected_isa())); },
      "The selected instruction-set level; IsaError if TENSORWRIGHT_ISA is wrong.");
  m.def("explain_dispatch", &dispatch_choices, "[(family, kernel taken, [\"kernel: why refused\"])]");
  m.def(
      "matmul_table", [](int dtype) { return names(matmul_kernels(dtype)); }, "dtype"_a,
      "[(name, isa, runnable here)], best first. dtype 0: float32, 1: bfloat16.");
  m.def("embedding_table", [](int dtype) { return names(embedding_kernels(dtype)); }, "dtype"_a);
  m.def("swiglu_table", [] { return names(swiglu_kernels()); });
  m.def("run_matmul", &run_matmul, "dtype"_a, "index"_a, "x"_a, "w"_a, "y"_a, "bias"_a = nb::none(),
        "residual"_a = nb::none(), "epilogue"_a = 0, "panel_begin"_a = 0, "panel_end"_a = -1,
        "Kernel `index` of matmul_table: x [rows, k], w packed uint8, y [rows, n] float32 or uint16 written "
        "in place, "
        "bias [panels * 16] in panel order, residual [rows, n].");
  m.def("run_embedding", &run_embedding, "dtype"_a, "index"_a, "ids"_a, "table"_a, "y"_a, "scale"_a = 1.0f);
  m.def("run_swiglu", &run_swiglu, "index"_a, "x"_a, "y"_a, "activation"_a = 0);
  m.def("pack_panels", &pack, "dtype"_a, "rows"_a,
        "rows [n, k] float32 or uint16 (bfloat16) -> uint8 panels of `dtype`; n may be any 16-aligned part "
        "of a matrix.");
  m.def("pack_swiglu_panels", &pack_swiglu, "dtype"_a, "gate"_a, "up"_a,
        "gate and up [n, k] -> panels gate 0, up 0, gate 1, up 1, ...");
  m.def("unpack_panels", &unpack, "dtype"_a, "packed"_a, "n"_a, "k"_a, "The inverse of pack_panels: [n, k].");
  m.def("panel_bytes", [](int dtype, size_t k) { return tw_panel_bytes(dtype, k); }, "dtype"_a, "k"_a);
  bind_attention_kernels(m);
  bind_elementwise_kernels(m);
  bind_layer_norm_kernels(m);
  bind_quantized_kernels(m);
  bind_benchmarks(m);
}

}  // namespace tensorwright
