// Single rms_norm, rotary and attention kernels for tests. Arrays of bfloat16 travel as uint16, pages as
// uint8.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plugins/common/dispatch.h"
#include "plugins/paged_attention/layout.h"
#include "runtime/core/base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorwright {

void bind_attention_kernels(nb::module_& m);
void bind_attention_benchmarks(nb::module_& m);  // benchmark_bindings_attention.cc

namespace {

using Array = nb::ndarray<nb::device::cpu>;
using OptionalArray = std::optional<Array>;
using Table = std::vector<std::tuple<std::string, std::string, bool>>;

void require(bool holds, const std::string& message) {
  if (!holds) throw Error("InvalidOptionError", message);
}

bool is_dtype(const Array& array, int dtype) {
  switch (dtype) {
    case TW_F32:
      return array.dtype() == nb::dtype<float>();
    case TW_BF16:
      return array.dtype() == nb::dtype<uint16_t>();
    case TW_I32:
      return array.dtype() == nb::dtype<int32_t>();
    case TW_I8:
      return array.dtype() == nb::dtype<uint8_t>();
  }
  return false;
}

// The data of an array of at least `size` elements whose last dimension is contiguous.
template <typename T>
T* data(const Array& array, int dtype, int64_t size, const char* what) {
  const size_t rank = array.ndim();
  require(is_dtype(array, dtype), std::string(what) + " has the wrong dtype");
  require(rank > 0 && (array.stride(rank - 1) == 1 || array.shape(rank - 1) <= 1 || array.size() == 0),
          std::string(what) + " must be contiguous along its last dimension");
  require(static_cast<int64_t>(array.size()) >= size,
          std::string(what) + " must have at least " + std::to_string(size) + " elements");
  return static_cast<T*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

int act_dtype(const Array& array, const char* what) {
  require(is_dtype(array, TW_F32) || is_dtype(array, TW_BF16),
          std::string(what) + " must be float32 or uint16");
  return is_dtype(array, TW_F32) ? TW_F32 : TW_BF16;
}

// The cache has q's type unless it is int8.
int cache_dtype(std::optional<int> asked, int q_dtype, int head_dim) {
  const int dtype = asked.value_or(q_dtype);
  require(dtype == q_dtype || dtype == TW_I8, "kv_dtype must be q's or int8");
  require(dtype != TW_I8 || head_dim <= TW_KV_I8_HEAD_DIM, "head_dim is too large for an int8 cache");
  return dtype;
}

int64_t rows_of(const Array& array) { return static_cast<int64_t>(array.shape(0)); }

template <typename Fn>
Table names(std::span<const KernelEntry<Fn>> table) {
  Table rows;
  for (const auto& entry : table) {
    rows.emplace_back(entry.name, isa_name(entry.isa), refusal(entry.isa, entry.extra, Isa::avx512).empty());
  }
  return rows;
}

template <typename Fn>
Fn entry_of(std::span<const KernelEntry<Fn>> table, size_t index) {
  require(index < table.size(), "kernel index out of range");
  const std::string reason = refusal(table[index].isa, table[index].extra, Isa::avx512);
  if (!reason.empty()) throw Error("IsaError", std::string(table[index].name) + ": " + reason);
  return table[index].fn;
}

void run_rms_norm(size_t index, const Array& x, const Array& w, const Array& y, const OptionalArray& residual,
                  const OptionalArray& sum, float eps, float weight_offset) {
  require(x.ndim() == 2 && y.ndim() == 2, "x and y must be [rows, width]");
  const int64_t rows = rows_of(x), width = static_cast<int64_t>(x.shape(1)), size = rows * width;
  require(residual.has_value() == sum.has_value(), "residual and sum come together");
  tw_rms_norm_args a = {};
  a.rows = static_cast<int32_t>(rows);
  a.width = static_cast<int32_t>(width);
  a.eps = eps;
  a.weight_offset = weight_offset;
  a.y_dtype = act_dtype(y, "y");
  a.x = data<float>(x, TW_F32, size, "x");
  a.w = data<float>(w, TW_F32, width, "w");
  a.y = data<void>(y, a.y_dtype, size, "y");
  a.x_stride = x.stride(0);
  a.y_stride = y.stride(0);
  if (residual) {
    require(residual->ndim() == 2 && sum->ndim() == 2, "residual and sum must be [rows, width]");
    a.residual = data<float>(*residual, TW_F32, size, "residual");
    a.sum = data<float>(*sum, TW_F32, size, "sum");
    a.residual_stride = residual->stride(0);
    a.sum_stride = sum->stride(0);
  }
  entry_of(rms_norm_kernels(), index)(&a);
}

void run_rotary_table(size_t index, const Array& positions, const Array& inv_freq, const Array& table,
                      float scale) {
  const int64_t tokens = rows_of(positions), half = rows_of(inv_freq);
  require(table.ndim() == 2, "table must be [tokens, 2 * half]");
  tw_rotary_table_args a = {};
  a.tokens = static_cast<int32_t>(tokens);
  a.half = static_cast<int32_t>(half);
  a.positions = data<int32_t>(positions, TW_I32, tokens, "positions");
  a.inv_freq = data<float>(inv_freq, TW_F32, half, "inv_freq");
  a.scale = scale;
  a.table = data<float>(table, TW_F32, tokens * 2 * half, "table");
  a.table_stride = table.stride(0);
  entry_of(rotary_table_kernels(), index)(&a);
}

void run_rotary_kv_write(size_t index, const Array& qkv, const Array& table, const Array& slots,
                         const Array& q, const Array& pages, int heads, int kv_heads, int head_dim,
                         int block_size, std::optional<int> kv_dtype) {
  require(qkv.ndim() == 2 && table.ndim() == 2 && q.ndim() == 2 && pages.ndim() == 2,
          "all but slots are matrices");
  const int64_t tokens = rows_of(slots);
  tw_rotary_kv_write_args a = {};
  a.tokens = static_cast<int32_t>(tokens);
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.head_dim = head_dim;
  a.rotary_dim = static_cast<int32_t>(table.shape(1));
  a.block_size = block_size;
  a.q_dtype = act_dtype(q, "q");
  a.kv_dtype = cache_dtype(kv_dtype, a.q_dtype, head_dim);
  a.qkv = data<float>(qkv, TW_F32, tokens * (heads + 2 * kv_heads) * head_dim, "qkv");
  a.qkv_stride = qkv.stride(0);
  a.table = data<float>(table, TW_F32, tokens * a.rotary_dim, "table");
  a.table_stride = table.stride(0);
  a.slots = data<int32_t>(slots, TW_I32, tokens, "slots");
  a.q = data<void>(q, a.q_dtype, tokens * heads * head_dim, "q");
  a.q_stride = q.stride(0);
  a.pages = data<char>(pages, TW_I8, 0, "pages");
  a.page_bytes = pages.stride(0);
  require(block_size > 0 && block_size % TW_LANES == 0, "block_size must be a multiple of 16");
  require(pages.shape(1) >= tw_kv_block_bytes(a.kv_dtype, kv_heads, head_dim, block_size),
          "pages are too small");
  for (int64_t t = 0; t < tokens; ++t) {
    require(a.slots[t] >= 0 && a.slots[t] < rows_of(pages) * block_size, "slots must lie in the pages");
  }
  entry_of(rotary_kv_write_kernels(), index)(&a);
}

void require_block_table(const tw_attention_args& a, int64_t table_size, int64_t blocks) {
  require(a.block_size > 0 && a.block_size % TW_LANES == 0 && TW_ATTENTION_SPLIT % a.block_size == 0,
          "block_size must be a multiple of 16 that divides " + std::to_string(TW_ATTENTION_SPLIT));
  const int64_t start = static_cast<int64_t>(a.split) * TW_ATTENTION_SPLIT;
  const int64_t first = a.window > 0 ? a.first_position - a.window + 1 : 0;
  const int64_t begin = std::max(start, first);
  const int64_t end =
      std::min<int64_t>(start + TW_ATTENTION_SPLIT, static_cast<int64_t>(a.first_position) + a.queries);
  if (begin >= end) return;
  for (int64_t block = begin / a.block_size; block * a.block_size < end; ++block) {
    require(block < table_size && a.block_table[block] >= 0 && a.block_table[block] < blocks,
            "block_table must name an existing block for every position seen");
  }
}

// q is [queries, group * head_dim], acc [queries, group, head_dim], max and sum [queries, group].
void run_attention(size_t index, const Array& q, const Array& pages, const Array& block_table,
                   const Array& acc, const Array& max, const Array& sum, int kv_head, int block_size,
                   int first_position, int split, float scale, int window, float softcap,
                   std::optional<int> kv_dtype) {
  require(q.ndim() == 2 && pages.ndim() == 2 && acc.ndim() == 3,
          "q and pages must be matrices, acc [Q, G, D]");
  tw_attention_args a = {};
  a.q_dtype = act_dtype(q, "q");
  a.queries = static_cast<int32_t>(acc.shape(0));
  a.group = static_cast<int32_t>(acc.shape(1));
  a.head_dim = static_cast<int32_t>(acc.shape(2));
  const int64_t rows = static_cast<int64_t>(a.queries) * a.group;
  const int dtype = cache_dtype(kv_dtype, a.q_dtype, a.head_dim);
  const size_t head_bytes = tw_kv_head_bytes(dtype, a.head_dim, block_size);
  require(kv_head >= 0 && pages.shape(1) >= (static_cast<size_t>(kv_head) + 1) * head_bytes,
          "pages are too small");
  a.block_size = block_size;
  a.first_position = first_position;
  a.window = window;
  a.split = split;
  a.scale = scale;
  a.softcap = softcap;
  a.q = data<void>(q, a.q_dtype, rows * a.head_dim, "q");
  a.q_stride = q.stride(0);
  a.pages = data<char>(pages, TW_I8, 0, "pages") + static_cast<size_t>(kv_head) * head_bytes;
  a.page_bytes = pages.stride(0);
  a.block_table = data<int32_t>(block_table, TW_I32, 0, "block_table");
  a.acc = data<float>(acc, TW_F32, rows * a.head_dim, "acc");
  a.max = data<float>(max, TW_F32, rows, "max");
  a.sum = data<float>(sum, TW_F32, rows, "sum");
  require_block_table(a, rows_of(block_table), rows_of(pages));
  const tw_attention_fn run = entry_of(attention_kernels(dtype), index);
  nb::gil_scoped_release release;
  run(&a);
}

// acc [splits, rows, head_dim], max and sum [splits, rows]; row r of the result is written at
// y.flat[y_offsets[r]].
void run_attention_combine(size_t index, const Array& acc, const Array& max, const Array& sum, const Array& y,
                           const std::vector<int64_t>& y_offsets, const std::optional<Array>& sinks) {
  require(acc.ndim() == 3 && y.ndim() == 1, "acc must be [splits, rows, head_dim] and y flat");
  tw_attention_combine_args a = {};
  a.splits = static_cast<int32_t>(acc.shape(0));
  a.rows = static_cast<int32_t>(acc.shape(1));
  a.head_dim = static_cast<int32_t>(acc.shape(2));
  const int64_t all = static_cast<int64_t>(a.splits) * a.rows;
  a.y_dtype = act_dtype(y, "y");
  a.acc = data<float>(acc, TW_F32, all * a.head_dim, "acc");
  a.max = data<float>(max, TW_F32, all, "max");
  a.sum = data<float>(sum, TW_F32, all, "sum");
  a.y = data<void>(y, a.y_dtype, 0, "y");
  a.y_offsets = y_offsets.data();
  if (sinks) a.sinks = data<float>(*sinks, TW_F32, a.rows, "sinks");
  require(y_offsets.size() == static_cast<size_t>(a.rows), "y_offsets must have one entry per row");
  for (int64_t offset : y_offsets) {
    require(offset >= 0 && offset + a.head_dim <= static_cast<int64_t>(y.size()), "y_offsets must lie in y");
  }
  entry_of(attention_combine_kernels(), index)(&a);
}

}  // namespace

void bind_attention_kernels(nb::module_& m) {
  m.def(
      "rms_norm_table", [] { return names(rms_norm_kernels()); },
      "[(name, isa, runnable here)], best first.");
  m.def("rotary_table_table", [] { return names(rotary_table_kernels()); });
  m.def("rotary_kv_write_table", [] { return names(rotary_kv_write_kernels()); });
  m.def("attention_table", [](int dtype) { return names(attention_kernels(dtype)); }, "dtype"_a);
  m.def("attention_combine_table", [] { return names(attention_combine_kernels()); });
  m.def("run_rms_norm", &run_rms_norm, "index"_a, "x"_a, "w"_a, "y"_a, "residual"_a = nb::none(),
        "sum"_a = nb::none(), "eps"_a = 1e-6f, "weight_offset"_a = 0.0f);
  m.def("run_rotary_table", &run_rotary_table, "index"_a, "positions"_a, "inv_freq"_a, "table"_a,
        "scale"_a = 1.0f);
  m.def("run_rotary_kv_write", &run_rotary_kv_write, "index"_a, "qkv"_a, "table"_a, "slots"_a, "q"_a,
        "pages"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "kv_dtype"_a = nb::none());
  m.def("run_attention", &run_attention, "index"_a, "q"_a, "pages"_a, "block_table"_a, "acc"_a, "max"_a,
        "sum"_a, "kv_head"_a, "block_size"_a, "first_position"_a, "split"_a, "scale"_a, "window"_a = 0,
        "softcap"_a = 0.0f, "kv_dtype"_a = nb::none());
  m.def("run_attention_combine", &run_attention_combine, "index"_a, "acc"_a, "max"_a, "sum"_a, "y"_a,
        "y_offsets"_a, "sinks"_a = nb::none());
  m.def(
      "kv_block_bytes",
      [](int dtype, int kv_heads, int head_dim, int block_size) {
        return tw_kv_block_bytes(dtype, kv_heads, head_dim, block_size);
      },
      "dtype"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "Bytes of one block of one layer.");
  bind_attention_benchmarks(m);
}

}  // namespace tensorwright
