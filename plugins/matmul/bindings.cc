// The matmul kernels and the packing of their weights in Python, for tests and benchmarks.
#include "plugins/matmul/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "plugins/matmul/kernels.h"
#include "runtime/bindings/kernel_bindings.h"
#include "runtime/bindings/testing/panels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {
namespace {

// The table of a dtype as Python names it: tw_dtype for x and weights, or this for float32 by bfloat16.
constexpr int kF32ByBf16 = -1;

std::span<const KernelEntry<tw_matmul_fn>> table_of(int dtype) {
  return dtype == kF32ByBf16 ? matmul_by_bf16_kernels() : matmul_kernels(dtype);
}

// y (float32 or uint16, [rows, n]) is written in place; panel_end < 0 means all panels.
void run_matmul(int table, size_t index, const Array& x, const Array& w, const Array& y,
                const OptionalArray& bias, const OptionalArray& residual, int epilogue, int panel_begin,
                int panel_end, const OptionalArray& addends, const std::vector<int>& added) {
  const int dtype = table == kF32ByBf16 ? TW_BF16 : table;
  require_rows(x, table == kF32ByBf16 ? TW_F32 : table, "x");
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
  std::vector<const float*> pointers(x.shape(0), nullptr);
  if (addends) {
    require_rows(*addends, TW_F32, "addends");
    require(addends->shape(0) == x.shape(0) && static_cast<int64_t>(addends->shape(1)) == panels * TW_LANES,
            "addends must have x's rows, and 16 columns for each panel");
    for (const int row : added) {
      require(row >= 0 && static_cast<size_t>(row) < pointers.size(), "added must be rows of x");
      pointers[static_cast<size_t>(row)] =
          static_cast<const float*>(addends->data()) + row * addends->stride(0);
    }
    a.addends = pointers.data();
  }
  const tw_matmul_fn run = kernel_at(table_of(table), index);
  nb::gil_scoped_release release;
  run(&a);
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

// Returns a new numpy array of the given shape that frees itself.
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

nb::object pack_gated(int dtype, const Array& gate, const Array& up) {
  require_weight_dtype(dtype);
  const PackSource g = source_of(gate, "gate"), u = source_of(up, "up");
  require(g.rows == u.rows && g.k == u.k, "gate and up must have the same shape");
  const size_t bytes = tw_panel_bytes(dtype, static_cast<size_t>(g.k));
  auto out = new_array<uint8_t>({2 * static_cast<size_t>(panels_of(g.rows)) * bytes});
  {
    nb::gil_scoped_release release;
    pack_gated_panels(dtype, g, u, out.data());
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

// Times one matmul as a plan would run it. by_rows: threads split rows, else panels. The copies of the
// weights take turns, so that the caches do not hold them.
std::vector<double> time_matmul(int dtype, size_t index, int rows, int n, int k, int epilogue, int threads,
                                int repeats, int copies, bool by_rows) {
  const tw_matmul_fn kernel = kernel_at(matmul_kernels(dtype), index);
  const int pair = tw_epilogue_panels(epilogue);
  const int panels = static_cast<int>(panels_of(n)) * pair;
  const size_t bytes = static_cast<size_t>(panels) * tw_panel_bytes(dtype, static_cast<size_t>(k));
  const Buffer w = benchmark_buffer(bytes * static_cast<size_t>(copies));
  const Buffer x =
      benchmark_buffer(static_cast<size_t>(rows) * static_cast<size_t>(k) * tw_dtype_bytes(dtype));
  const int y_dtype = pair == 2 ? dtype : TW_F32;
  const Buffer y = benchmark_buffer(static_cast<size_t>(rows) * static_cast<size_t>(n) * sizeof(float));
  return timed(threads, repeats, [&](int thread, int round) {
    tw_matmul_args a = {};
    const int64_t first = first_row(rows, thread, threads, by_rows);
    take_share(&a, rows, panels, pair, thread, threads, by_rows);
    a.k = k;
    a.n = n;
    a.epilogue = epilogue;
    a.y_dtype = y_dtype;
    a.x = x.get() + first * k * static_cast<int64_t>(tw_dtype_bytes(dtype));
    a.x_stride = k;
    a.w = w.get() + bytes * static_cast<size_t>(round % copies);
    a.y = y.get() + first * n * static_cast<int64_t>(tw_dtype_bytes(y_dtype));
    a.y_stride = n;
    kernel(&a);
  });
}

void bind_matmul(nb::module_& m) {
  m.def(
      "matmul_table", [](int dtype) { return kernel_list(table_of(dtype)); }, "dtype"_a,
      "[(name, isa, runnable here)], best first. dtype 0: float32, 1: bfloat16, -1: float32 by bfloat16.");
  m.def(
      "run_matmul", &run_matmul, "dtype"_a, "index"_a, "x"_a, "w"_a, "y"_a, nb::kw_only(),
      "bias"_a = nb::none(), "residual"_a = nb::none(), "epilogue"_a = 0, "panel_begin"_a = 0,
      "panel_end"_a = -1, "addends"_a = nb::none(), "added"_a = std::vector<int>(),
      "Kernel `index` of matmul_table: x [rows, k], w packed uint8, y [rows, n] float32 or uint16 written "
      "in place, "
      "bias [panels * 16] in panel order, residual [rows, n], addends [rows, panels * 16] of which the rows "
      "`added` count.");
  m.def("pack_panels", &pack, "dtype"_a, "rows"_a,
        "rows [n, k] float32 or uint16 (bfloat16) -> uint8 panels of `dtype`; n may be any 16-aligned part "
        "of a matrix.");
  m.def("pack_gated_panels", &pack_gated, "dtype"_a, "gate"_a, "up"_a,
        "gate and up [n, k] -> panels gate 0, up 0, gate 1, up 1, ...");
  m.def("unpack_panels", &unpack, "dtype"_a, "packed"_a, "n"_a, "k"_a, "The inverse of pack_panels: [n, k].");
  m.def("panel_bytes", [](int dtype, size_t k) { return tw_panel_bytes(dtype, k); }, "dtype"_a, "k"_a);
  m.def("time_matmul", &time_matmul, "dtype"_a, "index"_a, nb::kw_only(), "rows"_a, "n"_a, "k"_a,
        "epilogue"_a = 0, "threads"_a = 1, "repeats"_a = 10, "copies"_a = 1, "by_rows"_a = false,
        nb::call_guard<nb::gil_scoped_release>(),
        "Seconds of each repeat of one matmul kernel, split over threads by panels or by rows.");
}

const RegisteredBindings registered_matmul(&bind_matmul);

}  // namespace
}  // namespace tensorwright
